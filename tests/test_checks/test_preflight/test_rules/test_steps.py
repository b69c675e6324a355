"""What real processes say against the dry run."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers.preflight_models import batches, build, find
from mmengine.optim import build_optim_wrapper

from mmext.checks.ddp import SyncSettings
from mmext.checks.findings.finding import Severity
from mmext.checks.preflight.dry_run.run import dry_run_model
from mmext.checks.preflight.rules.registry import in_words
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


def test_a_graph_that_is_kept_and_does_not_grow():
    findings = find('memory for nobody')
    assert list(findings) == ['STEP002']
    assert findings['STEP002'].severity is Severity.INFO
    assert 'keeps memory' in findings['STEP002'].message


def test_not_finite_after_an_update():
    """With random weights, what is not finite later says nothing."""
    model = build('')
    section = {'optimizer': {'type': 'SGD', 'lr': 1e30}}
    wrapper = build_optim_wrapper(model, section)
    dry_run = dry_run_model(model, batches(), optim_wrapper=wrapper)
    (finding,) = dry_run_findings(dry_run, SyncSettings())
    assert finding.rule == 'STEP003'
    assert "step 2 of 'normal'" in finding.message
    dry_run = replace(dry_run, random_weights=True)
    assert dry_run_findings(dry_run, SyncSettings()) == []
    dry_run = dry_run_model(build('nan'), batches(), random_weights=True)
    (finding,) = dry_run_findings(dry_run, SyncSettings())
    assert "step 1 of 'normal'" in finding.message
    assert finding.message.endswith('; the weights are random here')
    assert finding.severity is Severity.WARNING


def test_loss_weight_0():
    misplaced = find('extra weight 0')
    assert list(misplaced) == ['STEP007']
    misplaced = misplaced['STEP007']
    assert misplaced.names == ('extra.bias', 'extra.weight')
    assert "'loss_e', which is 0 in all steps" in misplaced.message
    assert 'loss_weight is 0 in the model' in misplaced.message


NAMES = ['a.b.w', 'a.b.v', 'a.c', 'd.w', 'e']


def test_the_largest_module_that_holds_no_others():
    assert in_words(['a.b.w', 'a.b.v'], NAMES) == 'a.b'
    assert in_words(['a.b.w', 'a.c'], NAMES) == 'a.b.w, a.c'
    assert in_words(NAMES, NAMES) == 'a (3), d (1), e'


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
