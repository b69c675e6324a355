"""The benchmark of starts runs its commands in both checkouts."""

import pytest
from helpers.toy_ranks import load_tool

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def tool():
    return load_tool('benchmarks/startup')


def test_prints_both_and_the_ratio(tool, capsys):
    options = ['--only', 'import', '--repeats', '1']
    assert tool.main([*options, '--reference', str(tool.ROOT)]) == 0
    (line,) = [
        line
        for line in capsys.readouterr().out.splitlines()
        if 'mmext' in line
    ]
    name, *figures = [cell.strip() for cell in line.strip('│').split('│')]
    seconds, memory, before, _, ratio = map(float, figures)
    assert name == 'import mmext'
    assert 0 < seconds < memory
    assert ratio == pytest.approx(seconds / before, abs=0.2)


def test_a_tool_that_is_not_there_is_left_empty(tool, tmp_path):
    found = tool.measure(
        ['tools/new.py', '--help'], [tmp_path], 1, tmp_path / 'store'
    )
    assert found == [None]
    cost = tool.Cost(1.0, 2.0)
    assert tool.row('new', [cost, None]) == ['new', '1.00', '2', '', '', '']


def test_a_command_that_fails_is_named(tool, tmp_path):
    with pytest.raises(RuntimeError, match='must end with 0 or 1, got 3: oh'):
        tool.run(
            ['-c', 'print("oh"); raise SystemExit(3)'],
            tool.ROOT,
            tmp_path / 'store',
        )
