"""What the second run of a checkpointed module gets, and what it changes.

The oracle is the same module without checkpointing.
"""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from mmext.models.checkpointing.checkpoint import (
    checkpoint_module,
    checkpoint_modules,
    held_statistics,
)


class Odd(nn.Module):
    """Takes and gives what blocks of hosts take and give."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, pair, state, *, debug=False, use_reentrant=None):
        out = self.linear(pair[0] * pair[1][0]) + state['hidden']
        state['hidden'] = out.tanh()
        assert use_reentrant == 'mine'
        return {'out': [out.exp(), (out.sin(), None)], 'flag': debug}


def run_odd(with_cp: bool) -> tuple[list[Tensor], dict]:
    torch.manual_seed(5)
    odd = Odd()
    checkpoint_modules([odd], with_cp, 'odd')
    x, y, hidden = (torch.randn(2, 3, requires_grad=True) for _ in 'xyh')
    state = {'hidden': hidden}
    result = odd((x, [y]), state, debug=True, use_reentrant='mine')
    first, (second, nothing) = result['out']
    assert nothing is None
    assert result['flag'] is True
    loss = (first * second).sum() + state['hidden'].sum()
    loss.backward()
    tensors = [loss, x.grad, y.grad, hidden.grad]
    return tensors + [p.grad for p in odd.parameters()], result


def test_containers_in_and_out_and_keywords_that_pytorch_has():
    """A dict that the first run changed is as it was in the second run."""
    results, result = run_odd(True)
    plain, expected = run_odd(False)
    assert result.keys() == expected.keys()
    for a, b in zip(results, plain, strict=True):
        assert torch.equal(a, b)


def test_inputs_of_nested_checkpoints_are_not_kept():
    """Otherwise an outer checkpoint would save nothing."""

    class Note(nn.Module):
        def forward(self, x):
            seen.append(weakref.ref(x))
            return x * x

    seen: list = []
    inner = [Note(), Note()]
    outer = nn.Sequential(nn.Linear(3, 3), *inner)
    checkpoint_modules(inner, True, 'inner')
    checkpoint_module(outer)
    x = torch.ones(2, 3, requires_grad=True)
    loss = outer(x).sum()
    gc.collect()
    assert [ref() is None for ref in seen] == [True, True]
    loss.backward()
    assert len(seen) > 2
    expected = torch.ones(2, 3, requires_grad=True)
    outer[0](expected).pow(4).sum().backward()
    assert torch.allclose(x.grad, expected.grad, rtol=1e-5)


NORMS = {
    'BN': lambda: nn.BatchNorm1d(4),
    'SyncBN': lambda: nn.SyncBatchNorm(4),
    'BN of all batches': lambda: nn.BatchNorm1d(4, momentum=None),
    'BN without statistics': lambda: nn.BatchNorm1d(
        4, track_running_stats=False
    ),
    'IN': lambda: nn.InstanceNorm1d(4, track_running_stats=True),
    'IN without statistics': lambda: nn.InstanceNorm1d(4),
}


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('name', NORMS)
def test_running_statistics_are_those_of_one_run(name: str, training: bool):
    results = []
    for with_cp in (True, False):
        torch.manual_seed(6)
        net = nn.Sequential(nn.Conv1d(3, 4, 1), NORMS[name](), nn.Tanh())
        net.train(training)
        momentum = net[1].momentum
        checkpoint_modules([net], with_cp, 'net')
        for _ in range(3):
            loss = net(torch.randn(5, 3, 7)).pow(3).sum()
            loss.backward(retain_graph=True)
            loss.backward()
        assert net[1].momentum == momentum
        gradients = {key: p.grad for key, p in net.named_parameters()}
        results.append(net.state_dict() | gradients)
    for key, value in results[1].items():
        assert torch.equal(results[0][key], value), key


def test_statistics_come_back_when_the_second_run_fails():
    norm = nn.BatchNorm1d(2)
    count = norm.num_batches_tracked
    norm.register_forward_hook(lambda *_: 1 / norm.momentum)
    with pytest.raises(ZeroDivisionError), held_statistics(norm):
        norm(torch.ones(3, 2))
    assert norm.momentum == 0.1
    assert norm.num_batches_tracked is count
