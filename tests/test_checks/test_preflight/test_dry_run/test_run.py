"""What a dry run does to a model, and what it keeps of its steps."""

import copy

import pytest
import torch
from helpers.odd_modules import ODD, REFUSED, OddNet, batch_of, state_of
from helpers.preflight_models import batches, build, dry_run_planted, sgd

from mmext.checks.ddp import NO_SEARCH
from mmext.checks.preflight.dry_run.run import dry_run_model
from mmext.checks.preflight.dry_run.step import StepRun
from mmext.checks.preflight.rules.steps import dry_run_findings


def test_the_model_is_left_as_it_was():
    model = build('norm').eval()
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    dry_run = dry_run_model(model, batches(), optim_wrapper=sgd(model))
    assert len(dry_run.steps['normal']) == 2
    assert not model.training
    assert torch.equal(torch.get_rng_state(), random)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert model.head.weight.grad is None


def test_a_graph_that_the_next_step_uses():
    dry_run = dry_run_planted('memory', ('normal', 'empty'))
    # The second kind does not meet what the first has left behind.
    assert [crash.step for crash in dry_run.crashes] == [1, 1]
    (kept,) = dry_run.steps['normal'][0].kept
    assert (kept.location, kept.used_again) == ('kept', True)


def test_the_optimizer_steps_unless_a_gradient_is_bad():
    for mistake, moves in (('', True), ('nan gradient', False)):
        model = build(mistake).train()
        before = model.stem.weight.clone()
        run = StepRun(model, [sgd(model).optimizer])
        run.run(batches()['normal'][0], 'normal', 0)
        assert torch.equal(model.stem.weight, before) is not moves


@pytest.mark.parametrize('name', [*ODD, *REFUSED])
def test_odd_modules(name):
    model = OddNet(name)
    before = state_of(model)
    batches_of = {'normal': [batch_of(step, 0) for step in range(2)]}
    dry_run = dry_run_model(model, batches_of, optim_wrapper=sgd(model))
    assert dry_run.crashes == ()
    rules = [f.rule for f in dry_run_findings(dry_run, NO_SEARCH)]
    # An old spectral norm keeps the weight that it has computed.
    known = dict.fromkeys(REFUSED, 'DDP012') | {'spectral norm': 'STEP002'}
    assert rules == ([known[name]] if name in known else [])
    assert state_of(model) == before


def test_a_module_that_cannot_be_trained():
    model = OddNet('slots')
    model.part.train = None
    (crash,) = dry_run_model(model, {'normal': [batch_of(0, 0)]}).crashes
    assert crash.phase == 'change to the training mode'
