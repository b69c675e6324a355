import random

import numpy as np
import pytest
import torch
from preflight_models import batches, build, sgd

from mmext.preflight.proof._step import StepRun, random_state, restored

BATCH = batches()['normal'][0]


def test_losses():
    run = StepRun(build('extra logged').train())
    proof = run.run(BATCH, 'normal', 0)
    terms = {term.name: term for term in proof.losses}
    assert set(terms) == {'loss', 'norm'}
    assert terms['loss'].summed
    assert not terms['norm'].summed
    assert terms['norm'].requires_grad
    assert 'extra.weight' in terms['norm'].parameters
    assert 'extra.weight' not in terms['loss'].parameters
    assert proof.cost.nodes > 5
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


def test_the_phase_of_an_error():
    run = StepRun(build('crash').train())
    with pytest.raises(IndexError):
        run.run({**BATCH, 'kind': 'empty'}, 'empty', 0)
    assert run.phase == 'forward'


def test_restored():
    model = build('norm').train()
    optimizer = sgd(model, momentum=0.9).optimizer
    model.stem.weight.grad = torch.ones(3, 3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    draws = [f() for f in (random.random, np.random.rand)]
    state = random_state()
    with restored(model, [optimizer]):
        model.eval().train()
        StepRun(model, [optimizer]).run(BATCH, 'normal', 0)
        model.eval()
        torch.rand(3), random.random(), np.random.rand()
    assert draws != [random.random(), np.random.rand()]
    assert torch.equal(torch.get_rng_state(), state[2])
    assert model.training
    assert not optimizer.state
    assert torch.equal(model.stem.weight.grad, torch.ones(3, 3))
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
