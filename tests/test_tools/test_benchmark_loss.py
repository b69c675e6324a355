"""The benchmark of the losses compares equals and counts; no times."""

import json

import pytest
import torch
from helpers.toy_ranks import TOOLS, cells, load_tool

pytestmark = pytest.mark.slow

CPU = torch.device('cpu')


@pytest.fixture(scope='module')
def tool():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS / 'benchmarks'))
        yield load_tool('benchmarks/loss')


def test_prints_and_writes_all_sides(tool, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv('COLUMNS', '130')
    file = tmp_path / 'out' / 'loss.json'
    options = ['--device', 'cpu', '--scale', '0.1', '--repeats', '1']
    file.parent.mkdir()
    assert tool.main([*options, '--json', str(file)]) == 0
    printed = capsys.readouterr().out
    assert '4 x 150 x 52 x 52 from stride 4' in printed
    three = ['mmext', 'mmseg', 'torch']
    expected = three * 3 + three[:2]
    first = [row[0] for row in cells(printed)]
    assert first == [*expected, *tool.GRID]
    expected += ['mmext', 'mmseg with accuracy', 'torch'] * len(tool.GRID)
    content = json.loads(file.read_text())
    assert content['device'] == 'cpu'
    results = content['results']
    assert [result['side'] for result in results] == expected
    cases = {result['case'] for result in results}
    assert cases == {*tool.CASES, *tool.GRID}
    assert all(result['allocated'] is None for result in results)


def test_differences_are_found(tool):
    case = tool.make_case('ade20k', 0.05, CPU)
    ours, *others = case.sides
    twice = ours._replace(run=lambda: ours.run() * 2)
    case = case._replace(sides=[twice, *others])
    with pytest.raises(ValueError, match=r"same loss .*'mmext': (0.99|1.0)"):
        tool.measure(case, 1)
