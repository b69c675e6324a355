"""The benchmark counts what autograd keeps, and compares equals; no times."""

import pytest
import torch
from helpers.reduce_config import reduce_model
from helpers.toy_ranks import TOOLS, cells, load_tool
from mmengine.config import Config
from torch import nn

import mmext

pytestmark = pytest.mark.slow

CPU = torch.device('cpu')
N = 256 * 4  # bytes of a feature of the chain
HEADER = ['saved MiB', 'ratio', 's', 'ratio', 'RSS so far MiB']


@pytest.fixture(scope='module')
def tool():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS / 'benchmarks'))
        yield load_tool('benchmarks/activation_checkpoint')


@pytest.fixture(scope='module')
def tiny(tmp_path_factory) -> str:
    """Config of a small model of the same structure."""
    path = mmext.config_path('_base_/models/co_dino_5scale_r50.py')
    model = reduce_model(Config.fromfile(path).to_dict()['model'])
    file = tmp_path_factory.mktemp('tiny') / 'tiny.py'
    Config({'model': model}).dump(str(file))
    return str(file)


def blocks() -> nn.Sequential:
    """Three blocks of four functions, all of which save their result."""
    return nn.Sequential(
        *(nn.Sequential(*(nn.Sigmoid() for _ in range(4))) for _ in range(3))
    )


def peak(tool, net: nn.Module, *inputs: torch.Tensor) -> int:
    counter = tool.SavedBytes(net)
    with counter.counting():
        net(*inputs).sum().backward()
    assert counter.now < counter.peak
    return counter.peak


@pytest.mark.parametrize('ours', [True, False])
def test_counts_one_block_that_runs_again(tool, ours: bool):
    net, x = blocks(), torch.ones(256, requires_grad=True)
    with tool.checkpointed(net, ours):
        most = peak(tool, net, x)
    # The inputs of three blocks, and what the last one saves.
    assert most == (3 + 4) * N
    assert not any('forward' in block.__dict__ for block in net)


def test_leaves_out_parameters_and_buffers_and_views(tool):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(256))
            self.register_buffer('scale', torch.ones(256))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * self.weight.view(16, 16).view(256)
            return x * self.scale + (x * x).view(16, 16).sum()

    x = torch.ones(256, requires_grad=True)
    # x itself, and its product with the weight, twice in one operator.
    assert peak(tool, Net(), x) == 2 * N


def test_prints_all_variants(tool, tiny, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '100')
    options = ['--size', '160', '--repeats', '1', '--device', 'cpu']
    assert tool.main(['--config', tiny, *options]) == 0
    printed = capsys.readouterr().out
    assert '160 px, 10 boxes' in printed
    assert all(name in printed for name in HEADER)
    rows = cells(printed)
    assert [row[0] for row in rows] == ['none', 'config', 'all', 'theirs']
    saved = [float(row[2]) for row in rows]
    assert saved[0] == 1
    assert max(saved[1:]) < 1, 'checkpointing kept everything'
    assert saved[2] < saved[1], 'more checkpoints kept more'
    assert all(float(row[3]) > 0 for row in rows)
    assert all(float(row[5]) > float(row[1]) for row in rows)


def result(tool, name: str, loss: float, gradient: float):
    return tool.Result(name, 1, None, 1, loss, gradient)


@pytest.mark.parametrize(
    ('loss', 'gradient', 'what'), [(1.01, 2.0, 'loss'), (1.0, 2.1, 'gradient')]
)
def test_rejects_variants_that_differ(tool, loss, gradient, what):
    one, two = result(tool, 'none', 1.0, 2.0), result(tool, 'all', 1.0, 2.0)
    tool.check_same([one, two])
    with pytest.raises(ValueError, match=f'have the same {what} .*theirs'):
        tool.check_same([one, two, result(tool, 'theirs', loss, gradient)])
