"""The benchmark runs, compares equals, and counts memory; no times."""

import runpy

import pytest
import torch
from helpers.toy_ranks import TOOLS, cells

pytestmark = pytest.mark.slow

TOOL = TOOLS / 'benchmarks/co_dino.py'
CPU = torch.device('cpu')
TINY = [
    *('--device', 'cpu', '--image-size', '64', '--embed-dims', '32'),
    *('--layers', '1', '--queries', '5', '--co-queries', '3'),
    *('--repeats', '1'),
]


@pytest.fixture(scope='module')
def tool() -> dict:
    return runpy.run_path(str(TOOL))


def test_prints_both_sides_and_their_ratio(tool, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '100')
    assert tool['main'](TINY) == 0
    rows = cells(capsys.readouterr().out)
    assert [row[:2] for row in rows] == [
        ['decoder: one pass | 3 passes', 'ms'],
        ['decoder: one pass | 3 passes', 'MiB'],
        ['encoder: checkpointed | not', 'ms'],
        ['encoder: checkpointed | not', 'MiB'],
    ]
    for *_, ours, theirs, ratio in rows:
        assert float(ours) > 0
        assert float(theirs) > 0
        assert float(ratio) > 0
    assert float(rows[3][-1]) < 0.3, 'checkpointing kept everything'


def test_kept_bytes_counts_each_storage_once(tool):
    x = torch.ones(256, requires_grad=True)
    weight = torch.nn.Parameter(torch.ones(256))

    def run() -> torch.Tensor:
        y = x * 2.0  # saves nothing
        return (y * weight + y * weight + y.view(16, 16).view(256) ** 2).sum()

    assert tool['kept_bytes'](run, CPU) == 256 * 4


def test_rejects_sides_that_differ(tool):
    one = torch.ones((), requires_grad=True)
    contest = tool['Contest']('case', lambda: one * 1, lambda: one * 2)
    with pytest.raises(
        ValueError, match=r"must compute the same, got .*2\.0.* for 'case'"
    ):
        tool['measure'](contest, CPU, 1)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (['--embed-dims', '48'], 'embed_dims must be a multiple of 32, got'),
        (['--device', 'tpu'], "device must be 'auto', 'cpu', 'cuda' or"),
    ],
)
def test_bad_settings_are_named(tool, capsys, options: list, message: str):
    assert tool['main']([*TINY, *options]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize('value', ['0', '-1', 'x'])
def test_numbers_are_positive(tool, capsys, value: str):
    with pytest.raises(SystemExit) as stop:
        tool['main']([*TINY, '--repeats', value])
    assert stop.value.code == 2
    assert '--repeats' in capsys.readouterr().err
