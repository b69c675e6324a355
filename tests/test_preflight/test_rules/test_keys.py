"""Top-level keys that nobody reads."""

import inspect

import pytest
from helpers.lint_findings import changed, lint
from mmengine.config import Config
from mmengine.runner import FlexibleRunner, Runner

from mmext.config import DELETE
from mmext.preflight.rules.keys import READ_KEYS, reads_key


def test_reads_what_runners_take():
    for runner in (Runner, FlexibleRunner):
        for name in inspect.signature(runner.from_cfg).parameters:
            assert name == 'cfg'
        source = inspect.getsource(runner)
        for name in READ_KEYS:
            if f"cfg.get('{name}'" in source:
                assert reads_key(name)
    assert reads_key('train_cfg')
    assert not reads_key('max_epochs')


@pytest.mark.parametrize(
    ('name', 'meant'),
    [
        ('trian_cfg', 'train_cfg'),
        ('optim_wraper', 'optim_wrapper'),
        ('param_schedulers', 'param_scheduler'),
        ('custom_hook', 'custom_hooks'),
        ('auto_scale_ls', 'auto_scale_lr'),
    ],
)
def test_misspelt(name, meant):
    (found,) = lint(Config({name: {'a': 1}}), 'KEY001')
    assert found.key == name
    assert found.names == (meant,)
    assert found.options == {meant: {'a': 1}, name: DELETE}
    assert f'{meant} is near' in found.message


def test_misspelt_beside_the_right_one():
    (found,) = lint({'models': {}}, 'KEY001')
    assert found.names == ('model',)
    (found,) = lint({'trian_cfg': {}}, 'KEY001')
    assert found.options == {}


@pytest.mark.parametrize(
    'name', ['test_pipeline', 'train_cfg2', 'train_cfg_b', '_train_cfg']
)
def test_names_of_variables_are_no_errors(name):
    assert lint({name: [1]}, 'KEY001') == []


def test_misplaced_keys_may_be_allowed():
    cfg = changed({'model.train_cfg': {'find_unused_parameters': True}})
    cfg.check_misplaced_keys = False
    assert lint(cfg, 'KEY003') == []
