"""What real processes say against the dry run."""

from types import SimpleNamespace

import pytest
from helpers.preflight_models import batches, build, find
from mmengine.optim import build_optim_wrapper

from mmext.checks.ddp import SyncSettings
from mmext.checks.findings.finding import Severity
from mmext.checks.preflight.dry_run.run import dry_run_model
from mmext.checks.preflight.rules.names import by_module
from mmext.checks.preflight.rules.steps import (
    dry_run_findings,
    world_findings,
)

BOTH = ('normal', 'empty')


def test_crash():
    misplaced = find('crash', kinds=BOTH)
    assert list(misplaced) == ['STEP001']
    misplaced = misplaced['STEP001']
    assert 'IndexError: no boxes' in misplaced.message
    assert 'preflight_models.py:' in misplaced.message
    assert misplaced.batches == ('empty',)
    assert misplaced.severity is Severity.ERROR
    assert 'filter_empty_gt' in misplaced.remedy


@pytest.mark.parametrize(
    ('mistake', 'severity', 'said'),
    [
        ('memory that grows', Severity.WARNING, 'memory runs out'),
        ('memory for nobody', Severity.INFO, 'keeps memory'),
    ],
)
def test_a_graph_that_is_kept(mistake, severity, said):
    misplaced = find(mistake)
    assert list(misplaced) == ['STEP002']
    assert misplaced['STEP002'].severity is severity
    assert said in misplaced['STEP002'].message


def test_not_finite():
    misplaced = find('nan', kinds=BOTH)
    assert list(misplaced) == ['STEP003']
    assert "infinite or NaN: 'loss_n'" in misplaced['STEP003'].message
    assert 'look at the loss' in misplaced['STEP003'].message
    assert misplaced['STEP003'].batches == BOTH
    misplaced = find('nan inside')['STEP003']
    assert misplaced.names == ('head',)
    assert "step 1 of 'normal'" in misplaced.message


def test_not_finite_after_an_update():
    """With random weights, what is not finite later says nothing."""
    model = build('')
    section = {'optimizer': {'type': 'SGD', 'lr': 1e30}}
    wrapper = build_optim_wrapper(model, section)
    dry_run = dry_run_model(model, batches(), optim_wrapper=wrapper)
    (finding,) = dry_run_findings(dry_run, SyncSettings())
    assert finding.rule == 'STEP003'
    assert "step 2 of 'normal'" in finding.message
    assert dry_run_findings(dry_run, SyncSettings(), True) == []
    dry_run = dry_run_model(build('nan'), batches())
    (finding,) = dry_run_findings(dry_run, SyncSettings(), True)
    assert "step 1 of 'normal'" in finding.message


def test_loss_weight_0():
    misplaced = find('extra weight 0')
    assert list(misplaced) == ['STEP007']
    misplaced = misplaced['STEP007']
    assert misplaced.names == ('extra.bias', 'extra.weight')
    assert "'loss_e', which is 0 in all steps" in misplaced.message
    assert 'loss_weight is 0 in the model' in misplaced.message


def test_the_worst_come_first():
    section = {
        'optimizer': {'type': 'SGD', 'lr': 0.1},
        'paramwise_cfg': {'custom_keys': {'hed': {}, 'stem': {'lr_mult': 0}}},
    }
    model = build('extra memory for nobody')
    cfg = {'optim_wrapper': section}
    wrapper = build_optim_wrapper(model, section)
    dry_run = dry_run_model(model, batches(), optim_wrapper=wrapper, cfg=cfg)
    findings = dry_run_findings(dry_run, SyncSettings())
    rules = ['DDP001', 'OPT003', 'OPT004', 'OPT006']
    assert [finding.rule for finding in findings] == rules


NAMES = ['a.b.w', 'a.b.v', 'a.c', 'd.w', 'e']


def test_the_largest_module_that_holds_no_others():
    assert by_module(['a.b.w', 'a.b.v'], NAMES) == {'a.b': ['a.b.w', 'a.b.v']}
    assert by_module(['a.b.w', 'a.c'], NAMES) == {
        'a.b.w': ['a.b.w'],
        'a.c': ['a.c'],
    }
    assert list(by_module(NAMES, NAMES)) == ['a', 'd', 'e']


def world(agrees, observed='ok', detail='') -> SimpleNamespace:
    return SimpleNamespace(
        agrees=agrees, observed=observed, predicted='diverged', detail=detail
    )


@pytest.mark.parametrize(
    ('result', 'end'),
    [
        (world(False), 'ok (predicted: diverged)'),
        (world(True, 'unfinished'), 'predicts no error: unfinished'),
        (world(None, '', 'rank 1: KeyError'), 'processes; rank 1: KeyError'),
    ],
)
def test_processes_do_something_else(result, end):
    (finding,) = world_findings(result, True)
    assert (finding.rule, finding.severity) == ('WORLD001', Severity.ERROR)
    assert finding.message.endswith(end)
