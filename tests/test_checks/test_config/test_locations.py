"""Where configs set their keys."""

import json
from pathlib import Path

import mmdet
import pytest
from mmengine.config import Config

from mmext.checks.config.locations import (
    KeyLocation,
    config_files,
    key_location,
)

MMDET = Path(mmdet.__file__).parent / '.mim' / 'configs'
BASE = """\
size = (64, 64)
norm = dict(type='BN', eps=1)
model = dict(
    type='A',
    backbone=dict(
        depth=50,
        norm=norm),
    heads=[
        dict(a=1),
        dict(a=2)])
"""


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    write('base.py', BASE)
    return write


def where(file, key):
    location = key_location(file, key)
    return Path(location.file).name, location.line


NESTED = "a = dict(b=[1,\n  {'c': 2,\n   'd': 3}])"
TWICE = 'x = dict(c=1)\nx = dict(\n  c=2)\na = dict(b=x)'


@pytest.mark.parametrize(
    ('text', 'key', 'line'),
    [
        (NESTED, 'a.b[1].d', 3),
        (NESTED, 'a.b[-1].c', 2),
        (NESTED, 'a.b[5]', 1),
        (NESTED, 'a.b[1].x', 2),
        (TWICE, 'a.b.c', 3),
        # The name alone is set where it is used.
        (TWICE, 'a.b', 4),
        ('x = 1\nx = dict(c=x)\na = dict(**x, d=1)', 'a.c', 2),
        ('b = dict(c=1)\na = dict(b, d=1)', 'a.c', 1),
        ('x = [dict(c=1)]\na = [*x,\n dict(c=2)]', 'a[1].c', 2),
        ('x = dict(c=1)\na = dict(b=x[y])', 'a.b.c', 2),
        ('a = dict(a,\n b=1)', 'a.c', 1),
        ('a = dict(b=a)\na = dict(b=a)', 'a' + '.b' * 300, 1),
    ],
)
def test_inside_of_values(write, text, key, line):
    assert where(write('file.py', text), key) == ('file.py', line)


@pytest.mark.parametrize(
    ('value', 'file'),
    [
        ('dict(b=1)', 'base.py'),
        ("{'_delete_': False}", 'base.py'),
        ('dict(_delete_=True, b=1)', 'child.py'),
        ('[1]', 'child.py'),
        ('3', 'child.py'),
    ],
)
def test_values_that_replace_a_base(write, value, file):
    child = write('child.py', f"_base_ = 'base.py'\nmodel = {value}\n")
    assert where(child, 'model.type')[0] == file


def test_what_no_file_sets(write):
    file = write('base.py', BASE)
    assert where(file, 'model.backbone.with_cp') == ('base.py', 5)
    assert key_location(file, 'nothing') == KeyLocation('', 0)
    assert key_location(file.parent / 'no.py', 'a') == KeyLocation('', 0)
    assert key_location(Config({'a': 1}), 'a') == KeyLocation('', 0)


def test_through_bases(write):
    child = write(
        'sub/child.py',
        "_base_ = ['../base.py']\n"
        'model = dict(backbone=dict(\n'
        '    depth=101))\n',
    )
    assert where(child, 'model.backbone.depth') == ('child.py', 3)
    assert where(child, 'model.backbone.norm.type') == ('base.py', 2)
    assert where(child, 'model.backbone.x') == ('child.py', 2)
    assert where(child, 'size') == ('base.py', 1)
    assert '..' not in key_location(child, 'size').file
    assert where(Config.fromfile(child), 'size') == ('base.py', 1)


def test_deleted_below(write):
    child = write(
        'child.py',
        "_base_ = 'base.py'\nmodel = dict(backbone=dict(_delete_=True, x=1))",
    )
    assert where(child, 'model.backbone.depth') == ('child.py', 2)
    assert where(child, 'model.heads[0].a') == ('base.py', 9)


@pytest.mark.parametrize('name', ['_base_.norm', '{{_base_.norm}}'])
def test_variables_of_bases(write, name):
    child = write(
        'child.py', f"_base_ = 'base.py'\nneck = dict(\n    norm={name})\n"
    )
    Config.fromfile(child)
    assert where(child, 'neck.norm') == ('child.py', 3)
    assert where(child, 'neck.norm.eps') == ('base.py', 2)


def test_part_of_a_dict_by_a_variable(write):
    """What a variable leaves out comes from the base's dict."""
    child = write(
        'child.py',
        "_base_ = 'base.py'\nb = dict(depth=18)\nmodel = dict(backbone=b)\n",
    )
    assert where(child, 'model.backbone.depth') == ('child.py', 2)
    assert where(child, 'model.backbone.norm.eps') == ('base.py', 2)


def test_changes_of_a_variable(write):
    file = write(
        'a.py',
        'a = dict(b=1, c=dict(d=2))\n'
        'a.update(dict(e=3))\n'
        "a['c']['d'] = 4\n"
        'a.c.f = 5\n',
    )
    assert where(file, 'a.b') == ('a.py', 1)
    assert where(file, 'a.e') == ('a.py', 2)
    assert where(file, 'a.c.d') == ('a.py', 3)


def test_environment_and_what_cannot_be_parsed(write):
    file = write('a.py', "a = '{{$HOME:x}}'\nb = {{$PORT:8000}}\nc = 1\n")
    assert where(file, 'c') == ('a.py', 3)
    assert key_location(write('b.py', 'a = = 1'), 'a') == KeyLocation('', 0)


def test_packaged_configs(write):
    child = write(
        'child.py',
        "_base_ = 'mmext::pidnet/pidnet_s_camvid.py'\nlr = 1\n",
    )
    location = key_location(child, 'model.decode_head.num_classes')
    line = Path(location.file).read_text().splitlines()[location.line - 1]
    assert 'num_classes' in line
    assert Path(location.file).name == 'pidnet_s_camvid.py'


def test_imported_configs(write):
    write('lazy_base.py', 'model = dict(a=1,\n  b=dict(c=2))\nlr = 1\n')
    file = write(
        'lazy.py',
        'from mmengine.config import read_base\n'
        'with read_base():\n'
        '    from .lazy_base import *\n'
        'model.update(dict(a=3))\n'
        'lr = 2\n',
    )
    assert where(file, 'model.a') == ('lazy.py', 4)
    assert where(file, 'model.b.c') == ('lazy_base.py', 2)
    assert where(file, 'lr') == ('lazy.py', 5)


def test_data_files(write):
    base = write('base.json', json.dumps({'a': {'b': [1, {'c': 2}]}}))
    child = write('child.yml', '_base_: base.json\nd: 1\n')
    assert where(base, 'a.b[1].c') == ('base.json', 0)
    assert where(child, 'd') == ('child.yml', 0)
    assert where(child, 'a.b') == ('base.json', 0)


def test_bases_that_are_not_there(write):
    child = write('child.py', "_base_ = ['no.py', 'nowhere::a/b.py']\na = 1\n")
    assert where(child, 'a') == ('child.py', 2)
    assert config_files(child) == [str(child)]


def test_circles_end(write):
    one = write('one.py', "_base_ = 'two.py'\n")
    write('two.py', "_base_ = 'one.py'\n")
    assert key_location(one, 'a') == KeyLocation('', 0)
    assert len(config_files(one)) == 2


def test_a_changed_file_is_read_again(write):
    import os

    file = write('a.py', 'a = 1\n')
    assert where(file, 'a') == ('a.py', 1)
    write('a.py', '\n\na = 1\n')
    os.utime(file, ns=(1, 1))
    assert where(file, 'a') == ('a.py', 3)


def _leaves(value, key):
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _leaves(item, f'{key}.{name}' if key else name)
    else:
        yield key, value


@pytest.mark.parametrize(
    'name',
    [
        'dino/dino-5scale_swin-l_8xb2-36e_coco.py',
        'yolox/yolox_s_8xb8-300e_coco.py',
        'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
        'rtmdet/rtmdet_s_8xb32-300e_coco.py',
    ],
)
def test_lines_of_shipped_configs_name_the_key_or_the_value(name):
    cfg = Config.fromfile(MMDET / name)
    count = 0
    for key, value in _leaves(cfg.to_dict(), ''):
        if any('.' in step for step in key.split('.') if not step):
            continue
        location = key_location(cfg, key)
        lines = Path(location.file).read_text().splitlines()
        line = lines[location.line - 1]
        assert key.rpartition('.')[2] in line or repr(value) in line, key
        count += 1
    assert count > 50
