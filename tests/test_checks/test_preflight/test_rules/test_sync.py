import pytest
from helpers.preflight_models import batches, build, find, sgd

from mmext.checks.ddp import SyncSettings
from mmext.checks.findings.finding import Severity
from mmext.checks.preflight.dry_run.facts import DryRun
from mmext.checks.preflight.dry_run.options import ConfigOptions
from mmext.checks.preflight.dry_run.run import dry_run_model
from mmext.checks.preflight.rules.steps import dry_run_findings

HOOK = 'default_hooks.activation_checkpoint'
BLOCK = {'block.0.weight', 'block.0.bias'}
EXTRA = ('extra.weight', 'extra.bias')


@pytest.mark.parametrize(
    ('mistake', 'said'),
    [
        ('extra', 'never used in forward'),
        ('extra dropped', 'its output is not in the loss'),
        ('extra logged', "forward returns it in 'norm'"),
        ('extra no_grad', 'used under no_grad (extra, '),
        ('extra detached', 'detached on its way to the loss (by detach, '),
    ],
)
def test_unused(mistake, said):
    finding = find(mistake)['DDP001']
    assert said in finding.message
    assert '2 trainable parameters in extra:' in finding.message
    assert finding.names == EXTRA
    assert finding.severity is Severity.ERROR
    assert 'requires_grad_(False)' in finding.remedy
    assert finding.options == {'find_unused_parameters': True}


@pytest.mark.parametrize('flags', [(True,), (False, True)])
def test_unused_and_allowed(flags):
    misplaced = find('extra', *flags)
    assert list(misplaced) == ['DDP001']
    assert misplaced['DDP001'].severity is Severity.WARNING
    assert misplaced['DDP001'].options == {}


def test_data_dependent():
    kinds = ('normal', 'empty')
    misplaced = find('extra by kind', kinds=kinds)
    assert list(misplaced) == ['DDP007']
    misplaced = misplaced['DDP007']
    assert (misplaced.names, misplaced.batches) == (EXTRA, ('empty',))
    assert misplaced.severity is Severity.ERROR
    assert 'times 0' in misplaced.remedy
    assert misplaced.options == {'find_unused_parameters': True}
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


def test_reentrant_and_used_twice():
    finding = find('reentrant twice')['DDP002']
    assert set(finding.names) == BLOCK
    assert list(finding.options) == [HOOK]
    assert 'DDP002' not in find('reentrant twice', False, True)


def test_a_static_graph_and_an_output_that_is_in_no_loss():
    finding = find('extra logged', False, True)['DDP008']
    assert finding.names == EXTRA
    assert finding.options['find_unused_parameters'] is True


def test_options_are_where_the_config_sets_them():
    wrapper = {'type': 'MMDistributedDataParallel'}
    cfg = {
        'model_wrapper_cfg': {**wrapper, 'find_unused_parameters': True},
        'runner_type': 'Runner',
    }
    model = build()
    dry_run = dry_run_model(
        model, batches(), optim_wrapper=sgd(model), cfg=cfg
    )
    assert isinstance(dry_run.config, ConfigOptions)
    (finding,) = dry_run_findings(dry_run, SyncSettings(True))
    assert finding.key == 'model_wrapper_cfg.find_unused_parameters'
