"""Top-level keys that nobody reads."""

import inspect

import pytest
from lint_findings import changed, lint
from mmengine.config import Config
from mmengine.runner import FlexibleRunner, Runner

from mmext.preflight.findings import DELETE
from mmext.preflight.lint.keys import READ_KEYS, reads_key


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


def test_keys_of_the_predecessor():
    (found,) = lint({'lr_config': {'step': [8]}}, 'KEY002')
    assert 'param_scheduler' in found.remedy
    assert lint({'lr_config': {'step': [8]}}, 'KEY004') == []


def test_misplaced():
    cfg = changed({'model.train_cfg': {'find_unused_parameters': True}})
    (found,) = lint(cfg, 'KEY003')
    assert found.key == 'model.train_cfg.find_unused_parameters'
    assert found.options == {
        'model.train_cfg.find_unused_parameters': DELETE,
        'find_unused_parameters': True,
    }
    cfg.check_misplaced_keys = False
    assert lint(cfg, 'KEY003') == []


def test_unread(tmp_path):
    file = tmp_path / 'a.py'
    file.write_text('size = 3\nother = 4\nmodel = dict(a=size)\n')
    found = lint(Config.fromfile(file), 'KEY004')
    assert [(each.key, each.line) for each in found] == [('other', 2)]
    assert found[0].file == str(file)
