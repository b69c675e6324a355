"""Top-level keys that nobody reads."""

import inspect

import pytest
from helpers.lint_findings import changed, lint
from mmengine.config import Config
from mmengine.runner import Runner

from mmext.checks.config import DELETE
from mmext.checks.preflight.rules.keys import _KEYS_OF_SECTIONS
from mmext.engine import PortableRunner


@pytest.mark.parametrize(
    ('name', 'value', 'meant'),
    [
        ('trian_cfg', {'type': 'EpochBasedTrainLoop'}, 'train_cfg'),
        ('optim_wraper', {'type': 'OptimWrapper'}, 'optim_wrapper'),
        ('param_schedulers', [{'type': 'PolyLR'}], 'param_scheduler'),
        ('custom_hook', [{'type': 'EMAHook'}], 'custom_hooks'),
        ('load_form', 'a.pth', 'load_from'),
        ('custom_hooks_', [{'type': 'EMAHook'}], ''),
        ('custom_hooks2', [{'type': 'EMAHook'}], ''),
        ('custom_hook', [{'type': 'Mine'}], ''),
        ('devices', 4, ''),
        ('compiler', 'gcc', ''),
    ],
)
def test_renamed_where_it_can_be_nothing_else(name, value, meant):
    (finding,) = lint(Config({name: value}), 'KEY001')
    renamed = {meant: value, name: DELETE}
    assert finding.options == (renamed if meant else {})


def test_keys_of_own_code():
    cfg = Config({'devices': 4, 'with_cp': True, 'mine_1': 1, 'mine_2': 2})
    assert len(lint(cfg, 'KEY')) == 4
    cfg.own_keys = ['devices', 'with_cp', 'mine_*']
    assert lint(cfg, 'KEY') == []
    cfg = changed({'model.backbone.own': 1})
    assert lint(cfg, 'ARG001')
    cfg.own_keys = ['model.backbone.own']
    assert lint(cfg, 'ARG001') == []
    cfg.own_keys = 'own'
    (finding, *_) = lint(cfg, 'CHECK001')
    assert 'own_keys must be a list' in finding.message


def test_misspelt_beside_the_right_one():
    (finding,) = lint({'models': {}}, 'KEY001')
    assert finding.names == ('model',)
    (finding,) = lint({'trian_cfg': {}}, 'KEY001')
    assert finding.options == {}


@pytest.mark.parametrize(
    'name', ['test_pipeline', 'train_cfg2', 'train_cfg_b', '_train_cfg']
)
def test_names_of_variables_are_no_errors(name):
    assert lint({name: [1]}, 'KEY001') == []


@pytest.mark.parametrize(
    ('section', 'severity'),
    [
        ({'randomness': {'sed': 1}}, 'ERROR'),
        ({'env_cfg': {'cudnn_benchmarks': True}}, 'WARNING'),
        ({'auto_scale_lr': {'enabled': True}}, 'WARNING'),
        ({'randomness': {'seed': 1, 'deterministic': True}}, ''),
        ({'env_cfg': {'mp_cfg': {}, 'dist_cfg': {}}}, ''),
    ],
)
def test_sections_of_the_runner(section, severity):
    findings = lint(section, 'KEY005')
    assert [finding.severity.name for finding in findings] == (
        [severity] if severity else []
    )


def test_are_the_keys_that_mmengine_reads():
    keys = _KEYS_OF_SECTIONS['randomness']
    assert tuple(inspect.signature(Runner.set_randomness).parameters) == (
        'self',
        *keys,
    )
    source = inspect.getsource(Runner.setup_env)
    for key in _KEYS_OF_SECTIONS['env_cfg']:
        assert f"'{key}'" in source
    source = inspect.getsource(Runner.scale_lr)
    source += inspect.getsource(PortableRunner.scale_lr)
    for key in _KEYS_OF_SECTIONS['auto_scale_lr']:
        assert f"'{key}'" in source
