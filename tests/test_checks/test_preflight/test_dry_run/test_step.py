import random

import numpy as np
import pytest
import torch
from helpers.preflight_models import batches, build, sgd

from mmext.checks.preflight.dry_run.step import (
    StepRun,
    error_place,
    modules_of_error,
    restored,
)
from mmext.utils.training import get_rng_state

BATCH = batches()['normal'][0]


def test_losses():
    run = StepRun(build('extra logged').train())
    dry_run = run.run(BATCH, 'normal', 0)
    terms = {term.name: term for term in dry_run.losses}
    assert set(terms) == {'loss', 'norm'}
    assert terms['loss'].summed
    assert not terms['norm'].summed
    assert terms['norm'].requires_grad
    assert 'extra.weight' in terms['norm'].parameters
    assert 'extra.weight' not in terms['loss'].parameters
    assert dry_run.cost.nodes > 5
    assert run.phase == 'optimizer'


def test_batch_norms():
    model = build('norm twice').train()
    (norm,) = StepRun(model).run(BATCH, 'normal', 0).norms
    assert (norm.name, norm.kind) == ('norm', 'BatchNorm1d')
    assert (norm.calls, norm.updates) == (2, 2)
    model.norm.eval()
    assert StepRun(model).run(BATCH, 'normal', 0).norms == ()


def test_the_optimizer_steps_unless_a_gradient_is_bad():
    for mistake, moves in (('', True), ('nan gradient', False)):
        model = build(mistake).train()
        before = model.stem.weight.clone()
        StepRun(model, [sgd(model).optimizer]).run(BATCH, 'normal', 0)
        assert torch.equal(model.stem.weight, before) is not moves


def test_restored():
    model = build('norm').train()
    optimizer = sgd(model, momentum=0.9).optimizer
    model.stem.weight.grad = torch.ones(3, 3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    draws = [f() for f in (random.random, np.random.rand)]
    state = get_rng_state()
    with restored(model, [optimizer]):
        model.eval().train()
        StepRun(model, [optimizer]).run(BATCH, 'normal', 0)
        model.eval()
        torch.rand(3), random.random(), np.random.rand()
    assert draws != [random.random(), np.random.rand()]
    assert torch.equal(torch.get_rng_state(), state['torch'])
    assert model.training
    assert not optimizer.state
    assert torch.equal(model.stem.weight.grad, torch.ones(3, 3))
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_of_a_module():
    model = build()
    with pytest.raises(RuntimeError) as caught:
        model(inputs=batches()['normal'][0]['inputs'][:, :2])
    assert modules_of_error(caught.value, model) == ('stem',)
    place = error_place(caught.value)
    assert place.startswith('tests/helpers/preflight_models.py:')
    assert place.endswith(' in forward')
