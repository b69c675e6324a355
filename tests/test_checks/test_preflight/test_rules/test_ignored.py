"""Settings that another setting puts out of work."""

import inspect

import pytest
from helpers.lint_findings import lint
from mmengine.config import Config
from mmengine.optim import DefaultOptimWrapperConstructor

from mmext.checks.preflight.rules.ignored import _PARAMWISE

BASE = """
epochs = 12
size = (64, 64)
steps = [dict(type='Resize', scale=size)]
train_cfg = dict(by_epoch=True, max_epochs=epochs)
"""


def inherited(tmp_path, text, base=BASE):
    (tmp_path / 'base.py').write_text(base)
    child = tmp_path / 'child.py'
    child.write_text(f"_base_ = 'base.py'\n{text}")
    return Config.fromfile(child)


@pytest.mark.parametrize(
    'text',
    [
        'epochs = 12\n',
        'epochs = 24\ntrain_cfg = dict(max_epochs=epochs)\n',
        'other = 3\n',
        '',
    ],
)
def test_variables_that_are_fine(tmp_path, text):
    assert lint(inherited(tmp_path, text), 'IGN') == []


PREPROCESSOR = """
data_preprocessor = dict(size=(64, 64), bgr_to_rgb=True)
model = dict(data_preprocessor=data_preprocessor)
"""


@pytest.mark.parametrize(
    'text',
    [
        '',
        'data_preprocessor = dict(bgr_to_rgb=True)\n',
        'model = dict(data_preprocessor=dict(size=(32, 32)))\n',
        'data_preprocessor = dict(size=(32, 32))\n'
        'model = dict(data_preprocessor=data_preprocessor)\n',
    ],
)
def test_preprocessors_that_are_fine(tmp_path, text):
    cfg = inherited(tmp_path, text, PREPROCESSOR)
    assert lint(cfg, 'IGN') == []


def test_imports_of_a_base(tmp_path):
    base = "custom_imports = dict(imports=['json', 'csv'])\n"
    text = "custom_imports = dict(imports=['csv'])\n"
    (finding,) = lint(inherited(tmp_path, text, base), 'IGN')
    assert (finding.rule, finding.names) == ('IGN006', ('json',))
    # What it registers may be there already, by another module.
    assert (finding.severity.name, finding.options) == ('INFO', {})
    unknown = f"{text}model = dict(type='Unknown')\n"
    (finding,) = lint(inherited(tmp_path, unknown, base), 'IGN')
    assert finding.options == {'custom_imports.imports': ['json', 'csv']}
    text = "custom_imports = dict(imports=['json', 'csv', 'abc'])\n"
    assert lint(inherited(tmp_path, text, base), 'IGN') == []


@pytest.mark.parametrize(
    'text',
    [
        'train_cfg = dict(a=1)\ntrain_cfg = dict(**train_cfg, b=2)\n',
        'val_cfg = dict(a=1)\ntest_cfg = val_cfg\nval_cfg = dict(b=2)\n',
        'other = 1\nother = 2\n',
        'train_cfg = dict(a=1)\ntrain_cfg.update(b=2)\n',
    ],
)
def test_set_twice_and_used(tmp_path, text):
    assert lint(inherited(tmp_path, text), 'IGN007') == []


def test_settings_are_those_that_mmengine_reads():
    source = inspect.getsource(DefaultOptimWrapperConstructor)
    assert all(f"'{key}'" in source for key in _PARAMWISE)
    assert source.count('paramwise_cfg.get(') <= len(_PARAMWISE)
    settings = {'paramwise_cfg': {'own': 1}, 'constructor': 'Mine'}
    changes = {f'optim_wrapper.{key}': settings[key] for key in settings}
    assert lint(changes, 'IGN') == []
