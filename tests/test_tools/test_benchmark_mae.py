"""The benchmark runs its own side; the others need environments."""

import runpy
import sys

import pytest
from helpers.toy_ranks import TOOLS, cells

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group('processes')]

TOOL = TOOLS / 'benchmarks/mae.py'
TINY = [
    *('--arch', 'mini', '--image-size', '32', '--patch-size', '8'),
    *('--batch-size', '2', '--repeats', '1'),
]


@pytest.fixture(scope='module')
def main():
    return runpy.run_path(str(TOOL))['main']


def test_ours_alone(main, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '100')
    assert main(TINY) == 0
    rows = cells(capsys.readouterr().out)
    assert [row[:2] for row in rows] == [['step', 'ms'], ['step', 'MiB']]
    assert all(float(row[2]) > 0 for row in rows)


def test_a_side_that_does_not_run(main, capsys):
    assert main([*TINY, '--lightly', sys.executable]) == 1
    assert 'lightly must run' in capsys.readouterr().err
