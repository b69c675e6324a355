import pytest
from helpers.preflight_models import batches, build, find

from mmext.checks.ddp import SyncSettings
from mmext.checks.findings.finding import Severity
from mmext.checks.preflight.dry_run.run import DryRun, dry_run_model
from mmext.checks.preflight.rules.steps import dry_run_findings

EXTRA = ('extra.weight', 'extra.bias')


@pytest.mark.parametrize('flags', [(True,), (False, True)])
def test_unused_and_allowed(flags):
    misplaced = find('extra', *flags)
    assert list(misplaced) == ['DDP001']
    assert misplaced['DDP001'].severity is Severity.WARNING
    assert misplaced['DDP001'].options == {}


def test_data_dependent_and_allowed():
    kinds = ('normal', 'empty')
    allowed = find('extra by kind', True, kinds=kinds)['DDP007']
    assert (allowed.severity, allowed.options) == (Severity.INFO, {})
    static = find('extra by kind', False, True, kinds=kinds)
    assert list(static) == ['DDP007']
    assert static['DDP007'].options == {
        'model_wrapper_cfg.static_graph': False,
        'find_unused_parameters': True,
    }


def test_what_the_data_set_leaves_out_is_less_bad():
    dataset = {'filter_cfg': {'filter_empty_gt': True}}
    cfg = {'train_dataloader': {'dataset': {'datasets': [dataset]}}}
    for mistake in ('extra by kind', 'crash'):
        given = batches(('normal', 'empty'))
        dry_run = dry_run_model(build(mistake), given, cfg=cfg)
        (finding,) = dry_run_findings(dry_run, SyncSettings())
        assert finding.severity is Severity.WARNING
        assert 'filter_empty_gt' in finding.message + finding.remedy


def test_special_batches_alone_do_not_judge():
    given = batches(('normal', 'empty'))
    steps = dry_run_model(build('extra'), given).steps
    (finding,) = dry_run_findings(DryRun(steps), SyncSettings())
    assert finding.rule == 'DDP001'
    alone = DryRun({**steps, 'normal': ()})
    assert dry_run_findings(alone, SyncSettings()) == []
