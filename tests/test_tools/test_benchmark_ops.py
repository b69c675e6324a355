"""The benchmark of the operators compares equals, and draws; no times."""

import pytest
import torch
from helpers.toy_ranks import TOOLS, cells, load_tool

from mmext.ops import choice

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def tool():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS / 'benchmarks'))
        yield load_tool('benchmarks/ops')


@pytest.fixture(autouse=True)
def _leaves_the_choice_as_it_was(monkeypatch):
    monkeypatch.setattr(choice, '_chosen', 'auto')


def test_prints_one_line_per_shape(tool, capsys, monkeypatch):
    few = [tool.attention_case(3), *list(tool.nms_cases())[:1]]
    monkeypatch.setattr(tool, 'all_cases', lambda: few)
    # Both sides get the same answer.
    for case in few:
        one, other = (f(*case.inputs) for f in (case.run, case.naive))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert tool.main(['--repeats', '1']) == 0
    rows = cells(capsys.readouterr().out)
    assert [row[0] for row in rows] == [case.op for case in few]
    assert all(len(row) == 8 for row in rows)


def test_draws_queries_and_threads(tool, capsys, tmp_path):
    file = tmp_path / 'attention.svg'
    options = ['--threads', '1', '2', '--queries', '2', '3', '--repeats', '1']
    before = torch.get_num_threads()
    try:
        assert tool.main([*options, '--plot', str(file)]) == 0
    finally:
        torch.set_num_threads(before)
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert 'mmext, 2 threads' in file.read_text()


def test_a_table_is_of_one_number_of_threads(tool, capsys):
    with pytest.raises(SystemExit):
        tool.main(['--threads', '1', '2'])
    assert 'takes several with --plot only' in capsys.readouterr().err
