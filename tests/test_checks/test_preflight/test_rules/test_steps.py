"""What real processes say against the proof."""

from types import SimpleNamespace

import pytest
from helpers.preflight_models import batches, build, find
from mmengine.optim import build_optim_wrapper

from mmext.checks.ddp import SyncSettings
from mmext.checks.findings.finding import Severity
from mmext.checks.preflight.dry_run.facts import DryRun, OptimizerFacts
from mmext.checks.preflight.dry_run.run import dry_run_model
from mmext.checks.preflight.rules.names import by_module, count_of, in_words
from mmext.checks.preflight.rules.steps import (
    dry_run_findings,
    optimizer_findings,
    world_findings,
)

BOTH = ('normal', 'empty')


def test_a_clean_model_has_none():
    assert find('', kinds=BOTH) == {}
    assert find('norm', kinds=BOTH) == {}
    assert find('frozen stem', kinds=BOTH) == {}


def test_crash():
    found = find('crash', kinds=BOTH)
    assert list(found) == ['STEP001']
    found = found['STEP001']
    assert 'IndexError: no boxes' in found.message
    assert 'preflight_models.py:' in found.message
    assert found.batches == ('empty',)
    assert found.severity is Severity.ERROR
    assert 'filter_empty_gt' in found.remedy


def test_a_graph_that_the_next_step_uses():
    found = find('memory')
    assert set(found) == {'STEP002', 'STEP008'}
    crash, kept = found['STEP008'], found['STEP002']
    assert crash.severity is kept.severity is Severity.ERROR
    assert "the attribute 'kept' of the model holds it" in crash.message
    assert 'store it detached' in crash.remedy
    assert kept.names == ('kept',)
    assert 'the next step uses it, and fails' in kept.message


@pytest.mark.parametrize(
    ('mistake', 'severity', 'said'),
    [
        ('memory that grows', Severity.WARNING, 'memory runs out'),
        ('memory for nobody', Severity.INFO, 'keeps memory'),
    ],
)
def test_a_graph_that_is_kept(mistake, severity, said):
    found = find(mistake)
    assert list(found) == ['STEP002']
    assert found['STEP002'].severity is severity
    assert said in found['STEP002'].message


def test_not_finite():
    found = find('nan', kinds=BOTH)
    assert list(found) == ['STEP003']
    assert "infinite or NaN: 'loss_n'" in found['STEP003'].message
    assert 'look at the loss' in found['STEP003'].message
    assert found['STEP003'].batches == BOTH
    found = find('nan inside')['STEP003']
    assert found.names == ('head',)
    assert "step 1 of 'normal'" in found.message


def test_not_finite_after_an_update():
    """With random weights, what is not finite later says nothing."""
    model = build('')
    section = {'optimizer': {'type': 'SGD', 'lr': 1e30}}
    wrapper = build_optim_wrapper(model, section)
    proof = dry_run_model(model, batches(), optim_wrapper=wrapper)
    (found,) = dry_run_findings(proof, SyncSettings())
    assert found.rule == 'STEP003'
    assert "step 2 of 'normal'" in found.message
    assert dry_run_findings(proof, SyncSettings(), True) == []
    proof = dry_run_model(build('nan'), batches())
    (found,) = dry_run_findings(proof, SyncSettings(), True)
    assert "step 1 of 'normal'" in found.message


def test_loss_weight_0():
    found = find('extra weight 0')
    assert list(found) == ['STEP007']
    found = found['STEP007']
    assert found.names == ('extra.bias', 'extra.weight')
    assert "'loss_e', which is 0 in all steps" in found.message
    assert 'loss_weight is 0 in the model' in found.message


def test_nothing_to_say():
    assert list(optimizer_findings(DryRun({}))) == []
    assert (
        list(optimizer_findings(DryRun({}, optimizer=OptimizerFacts()))) == []
    )


def test_all():
    facts = OptimizerFacts(
        missing=('late.weight',),
        frozen=('stem.weight', 'stem.bias'),
        rate_zero=('head.weight',),
        unmatched={'extr.weight': 'extra.weight', 'zzz': ''},
        shadowed=('blo',),
    )
    found = list(optimizer_findings(DryRun({}, optimizer=facts)))
    assert [(each.rule, each.severity) for each in found] == [
        ('OPT001', Severity.ERROR),
        ('OPT002', Severity.INFO),
        ('OPT003', Severity.WARNING),
        ('OPT004', Severity.WARNING),
        ('OPT004', Severity.WARNING),
        ('OPT005', Severity.INFO),
    ]
    assert found[0].names == ('late.weight',)
    assert "the nearest real name is 'extra.weight'" in found[3].message
    assert found[3].remedy == "write 'extra.weight'"
    assert 'nearest' not in found[4].message
    key = 'optim_wrapper.paramwise_cfg.custom_keys'
    assert [each.key for each in found[3:]] == [
        key,
        f'{key}.zzz',
        f'{key}.blo',
    ]


@pytest.mark.parametrize('mergeable', [True, False])
def test_groups_with_the_same_settings(mergeable):
    facts = OptimizerFacts(groups=515, merged=2, mergeable=mergeable)
    (found,) = optimizer_findings(DryRun({}, optimizer=facts))
    assert (found.rule, found.severity) == ('OPT006', Severity.INFO)
    assert '515 groups of parameters, with 2 different' in found.message
    name = 'mmext.MergedOptimWrapperConstructor'
    options = {'optim_wrapper.constructor': name}
    assert found.options == (options if mergeable else {})
    assert (name in found.remedy) == mergeable


def test_the_worst_come_first():
    section = {
        'optimizer': {'type': 'SGD', 'lr': 0.1},
        'paramwise_cfg': {'custom_keys': {'hed': {}, 'stem': {'lr_mult': 0}}},
    }
    model = build('extra memory for nobody')
    cfg = {'optim_wrapper': section}
    wrapper = build_optim_wrapper(model, section)
    proof = dry_run_model(model, batches(), optim_wrapper=wrapper, cfg=cfg)
    found = dry_run_findings(proof, SyncSettings())
    rules = ['DDP001', 'OPT003', 'OPT004', 'OPT006']
    assert [each.rule for each in found] == rules


def test_nothing_ran():
    model = build('crash')
    proof = dry_run_model(model, batches(('empty',)))
    (found,) = dry_run_findings(proof, SyncSettings(True))
    assert found.rule == 'STEP001'


NAMES = ['a.b.w', 'a.b.v', 'a.c', 'd.w', 'e']


def test_the_largest_module_that_holds_no_others():
    assert by_module(['a.b.w', 'a.b.v'], NAMES) == {'a.b': ['a.b.w', 'a.b.v']}
    assert by_module(['a.b.w', 'a.c'], NAMES) == {
        'a.b.w': ['a.b.w'],
        'a.c': ['a.c'],
    }
    assert list(by_module(NAMES, NAMES)) == ['a', 'd', 'e']


def test_words():
    assert in_words(NAMES, NAMES) == 'a (3), d (1), e'
    assert in_words(NAMES[:2], NAMES) == 'a.b'
    many = [f'm{i}.w' for i in range(9)]
    assert in_words(many, many).endswith('m5 (1), 3 more')


def test_counts():
    assert count_of(['x']) == '1 parameter'
    assert count_of([], 'module') == '0 modules'


def world(agrees, observed='ok', detail='') -> SimpleNamespace:
    return SimpleNamespace(
        agrees=agrees, observed=observed, predicted='diverged', detail=detail
    )


@pytest.mark.parametrize(
    ('result', 'works'),
    [(None, True), (world(True), True), (world(True, 'unfinished'), False)],
)
def test_processes_do_what_is_expected(result, works):
    assert world_findings(result, works) == []


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
