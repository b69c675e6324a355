"""The counter of tensor memory sees what is alive, once, while it is."""

import doctest

import pytest
import torch
from helpers.toy_ranks import load_tool

pytestmark = pytest.mark.slow

N = 256 * 4  # bytes of the tensor that most tests use


@pytest.fixture(scope='module')
def tool():
    return load_tool('benchmarks/tensor_peak')


def test_example_runs(tool):
    failed, tried = doctest.testmod(tool)
    assert tried
    assert not failed


def test_counts_views_once_and_not_what_was_there(tool):
    x = torch.ones(256)
    with tool.TensorPeak() as memory:
        x.view(16, 16).add_(1)
        assert memory.peak == 0
        y = x + 1
        y.view(16, 16).t().mul_(2)
    assert (memory.now, memory.peak) == (N, N)
    del y
    assert (memory.now, memory.peak) == (0, N)


def test_sees_what_only_autograd_holds(tool):
    x = torch.ones(256, requires_grad=True)
    with tool.TensorPeak() as memory:
        loss = x.exp().exp().sum()
        assert memory.now == 2 * N + 4
        loss.backward()
    assert memory.now == N + 4  # the gradient and the loss


def test_leaves_out_what_it_is_told_to(tool):
    weight = torch.nn.Parameter(torch.ones(256))
    with tool.TensorPeak() as memory:
        (weight * 2).sum().backward()
    assert memory.now == N
    kept = weight.grad
    weight.grad = None
    with tool.TensorPeak(leave_out=[kept]) as memory:
        other = kept.add_(1)
    assert memory.peak == 0
    assert other is kept
