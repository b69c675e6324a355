"""What rules ask of a config."""

from pathlib import Path

import pytest
from helpers.lint_findings import changed
from mmengine.config import Config

from mmext.checks.preflight.rules.subject import (
    Subject,
)


def test_classes_of_splits():
    subject = Subject(
        changed({'val_dataloader.dataset.metainfo': {'classes': ('a', 'b')}})
    )
    assert len(subject.classes('train')) == 80
    assert subject.classes('val') == ('a', 'b')
    assert subject.classes('test') == ()


def test_uses_in_all_files(tmp_path):
    (tmp_path / 'base.py').write_text(
        'size = 3\nx = dict(a=size)  # y\nmodels = "models/a.py"\n'
    )
    child = tmp_path / 'child.py'
    child.write_text("_base_ = 'base.py'\ny = 4\nz = {{_base_.x}}\n")
    subject = Subject(Config.fromfile(child))
    assert [Path(file).name for file in subject.files] == [
        'child.py',
        'base.py',
    ]
    used = [
        name
        for name in ['size', 'x', 'y', 'z', 'models']
        if subject.is_used(name)
    ]
    assert used == ['size', 'x']
    assert subject.users('x') == [str(child)]


@pytest.mark.parametrize(
    ('child', 'base', 'environ', 'expected'),
    [
        ('a_4xb2', 'b_8xb4_1x', {}, 4),
        ('a', 'b_8xb4_1x', {}, 8),
        ('a_4xb2', 'b', {'WORLD_SIZE': '3'}, 3),
        ('a_4xb2', 'b', {'WORLD_SIZE': 'x'}, 4),
        ('swin_4xb', 'r50x4xb2', {}, None),
    ],
)
def test_number_of_processes(child, base, environ, expected, tmp_path):
    (tmp_path / f'{base}.py').write_text('x = 3\n')
    file = tmp_path / f'{child}.py'
    file.write_text(f"_base_ = '{base}.py'\n")
    cfg = Config.fromfile(file)
    assert Subject(cfg, environ=environ).world == expected
    assert Subject(cfg, environ=environ, world=7).world == 7
