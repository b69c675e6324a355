"""Configs that checkpoints hold: read as values, not run."""

import math

import pytest
from mmengine.config import Config

import mmext
from mmext.checks.config import read_config

TEXT = """
'''A comment.'''
data_root = 'data/'
model = dict(
    type='mmdet.FocalLoss',
    name='a\\nb',
    numbers=[1, -2.5, inf, 1e-5, None, True],
    nested=dict({'x-y': (1, )}, z={'a': {1, 2}}, **{'k': b'v'}),
    steps=range(0, 3))
test_dataloader = dict(dataset=dict(data_root=data_root))
"""


def stored(text, **kwargs):
    return read_config(None, meta=dict(cfg=text), **kwargs)


def test_values(tmp_path):
    cfg = stored(TEXT)
    assert cfg.model.numbers == [1, -2.5, math.inf, 1e-5, None, True]
    assert cfg.model.nested.to_dict() == {
        'x-y': (1,),
        'z': {'a': {1, 2}},
        'k': b'v',
    }
    assert cfg.model.name == 'a\nb'
    assert cfg.model.steps == range(3)
    assert cfg.test_dataloader.dataset.data_root == 'data/'


@pytest.mark.parametrize(
    'name',
    [
        'co_dino/co_dino_5scale_r50_8xb2_1x_coco.py',
        pytest.param(
            'co_dino/co_dino_5scale_swin_l_lsj_16xb1_1x_coco.py',
            marks=pytest.mark.slow,
        ),
        'segformer/segformer_mit_b0_8xb2_160k_ade20k.py',
    ],
)
def test_what_mmengine_stores_of_our_configs(name):
    cfg = Config.fromfile(mmext.config_path(name))
    assert stored(cfg.pretty_text).to_dict() == cfg.to_dict()


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('import os', "line 1 has 'import os'"),
        ('a = 1\nb = __import__("os").mkdir({trap!r})', 'line 2 has'),
        ('a = [print for x in "a"]', 'line 1 has'),
        ('a = eval("1")', 'line 1 has'),
        ('a = open({trap!r}, "w")', 'line 1 has'),
        ('a.b = 1', 'line 1 has'),
        ('def f(): pass', 'line 1 has'),
        ('a = (', 'cannot be read'),
        (
            'custom_imports = dict(imports=["trap_module"])',
            "custom_imports names the module 'trap_module'",
        ),
        (
            'model = dict(type="os.mkdir", path={trap!r})',
            "model.type is 'os.mkdir', of no known package",
        ),
        (
            'model = dict(a=[dict(type="mmengine.rmtree")])',
            r"model.a\[0\].type is 'mmengine.rmtree', which is not registe",
        ),
        (
            'model = dict(type="trap_module")',
            "model.type is 'trap_module', which is not registered",
        ),
        (
            'test_dataloader = dict(dataset=dict(pipeline=['
            'dict(type="os.mkdir", path={trap!r})]))',
            r"test_dataloader.dataset.pipeline\[0\].type is 'os.mkdir'",
        ),
    ],
)
def test_code_is_not_run(text, message, tmp_path, monkeypatch):
    trap = tmp_path / 'trap'
    (tmp_path / 'trap_module.py').write_text(
        f'import os\nos.mkdir({str(trap)!r})\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=message) as info:
        stored(text.format(trap=str(trap)))
    assert not trap.exists()
    assert '--trust-checkpoint' in str(info.value)


def test_trusted_text_is_run(tmp_path):
    text = f'import os\nos.mkdir({str(tmp_path / "trap")!r})\na = 1'
    assert stored(text, trust_checkpoint=True).a == 1
    assert (tmp_path / 'trap').is_dir()
