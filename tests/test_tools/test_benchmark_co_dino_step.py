"""The benchmark runs each side alone and together; no times."""

import importlib

import pytest
from helpers.toy_ranks import TOOLS, cells

pytestmark = pytest.mark.slow

SMALL = [
    *('--config', str(TOOLS.parent / 'configs/co_dino/co_dino_r18_shapes.py')),
    *('--device', 'cpu', '--height', '64', '--width', '96', '--boxes', '2'),
    *('--repeats', '1'),
]


@pytest.fixture
def tool(monkeypatch):
    """An importable module: its processes look it up by its name."""
    monkeypatch.syspath_prepend(TOOLS / 'benchmarks')
    monkeypatch.setenv('COLUMNS', '100')
    return importlib.import_module('co_dino_step')


@pytest.mark.parametrize('sides', [['ours bf16'], ['ours', 'ours bf16']])
def test_measures_each_side(tool, capsys, sides: list):
    assert tool.main([*SMALL, '--sides', *sides]) == 0
    out = capsys.readouterr().out
    rows = {name: row for name, *row in cells(out)}
    assert list(rows) == list(tool.MEASURES)
    assert all(f'loss of {side}: ' in out for side in sides)
    for unit, *values in rows.values():
        assert unit in tool.MEASURES.values()
        assert len(values) == len(sides)
    assert all(float(value) > 0 for value in rows['RSS'][1:])


def test_rejects_sides_that_differ(tool):
    class Answers:
        def __init__(self, side, loss):
            self.side, self.loss = side, loss

        def ask(self, name):
            return self.loss

    tool.check_losses([Answers('ours', 1.0), Answers('ours bf16', 1.1)])
    with pytest.raises(ValueError, match=r'compute the same, got .*1\.1'):
        tool.check_losses([Answers('ours', 1.0), Answers('port', 1.1)])


def test_side_that_is_killed(tool, capsys, monkeypatch):
    start = tool.Process.__init__

    def start_and_kill(self, *args):
        start(self, *args)
        self.process.kill()

    monkeypatch.setattr(tool.Process, '__init__', start_and_kill)
    assert tool.main([*SMALL, '--sides', 'ours']) == 1
    assert 'ours must run, but was killed' in capsys.readouterr().err
