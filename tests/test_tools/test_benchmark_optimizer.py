"""The benchmark of optimizers runs, and compares equals; no times."""

import pytest
from helpers.toy_ranks import TOOLS, cells, load_tool

import mmext

pytestmark = pytest.mark.slow

CONFIG = f"""
_base_ = {mmext.config_path('co_dino/co_dino_r18_shapes.py')!r}
optim_wrapper = dict(paramwise_cfg=dict(_delete_=True, norm_decay_mult=0.0))
"""


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS / 'benchmarks'))
    return load_tool('benchmarks/optimizer')


def test_prints_all_ways(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('COLUMNS', '100')
    (tmp_path / 'config.py').write_text(CONFIG)
    argv = ['--config', str(tmp_path / 'config.py'), '--repeats', '1']
    assert tool.main([*argv, '--device', 'cpu']) == 0
    rows = cells(capsys.readouterr().out)
    assert [row[0] for row in rows] == [
        'single',
        'merged',
        'foreach',
        'default',
    ]
    groups = [int(row[1]) for row in rows]
    assert groups[0] > 100
    assert groups[1:] == [2, 2, 2]
    assert [row[2] for row in rows] == ['no', 'no', 'no', 'yes']
    assert all(float(row[4]) > 0 for row in rows)
    assert float(rows[1][5]) == 0
    assert float(rows[3][5]) <= 1e-6


def test_refuses_ways_that_differ(tool, tmp_path, monkeypatch, capsys):
    (tmp_path / 'config.py').write_text(CONFIG)
    monkeypatch.setitem(tool.WAYS, 'foreach', (tool.MERGED, {'lr': 0.1}))
    argv = ['--config', str(tmp_path / 'config.py'), '--repeats', '1']
    assert tool.main([*argv, '--device', 'cpu']) == 1
    error = capsys.readouterr().err
    assert 'all ways must give the same weights, got' in error
    assert "between 'foreach' and 'single'" in error


def test_needs_an_optimizer(tool, tmp_path, capsys):
    config = mmext.config_path('_base_/models/co_dino_r18_small.py')
    assert tool.main(['--config', config, '--device', 'cpu']) == 1
    assert 'config must have an optim_wrapper' in capsys.readouterr().err
