"""What rules ask of a config."""

import pytest
from mmengine.config import Config

from mmext.checks.preflight.rules.subject import Subject


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
