import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from mmext.checks.ddp.value_flow import ValueFlow, reentrant_calls


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)


NAMES = ['a.weight', 'a.bias', 'b.weight', 'b.bias']


@pytest.fixture
def net():
    return Net()


def follow(net, run):
    """Run, and return the flow and the cuts before the result."""
    with ValueFlow(net, NAMES) as flow:
        result = run(net, torch.ones(3, 2))
    return flow, flow.cut_before([result])


def test_use_with_gradients(net):
    flow, cuts = follow(net, lambda net, x: net.a(x).relu().sum())
    assert [flow.is_used(i) for i in range(4)] == [True, True, False, False]
    assert cuts == {}
    assert flow.no_grad_cuts == {}
    assert flow.module_calls == {'a': 1}


@pytest.mark.parametrize(
    ('cut', 'function'),
    [
        (lambda y: y.detach(), 'detach'),
        (lambda y: y.data, 'data'),
        (lambda y: y.argmax(1).float(), 'argmax'),
        (lambda y: (y > 0).float(), 'gt'),
        (lambda y: y.round().int().float(), 'int'),
    ],
)
def test_functions_that_cut(net, cut, function):
    flow, cuts = follow(net, lambda net, x: (cut(net.a(x)) * 2 + 1).sum())
    assert flow.is_used(0)
    assert cuts[0].cause == 'function'
    assert cuts[0].function == function
    assert 'test_value_flow.py:' in cuts[0].location
    assert set(cuts) == {0, 1}


def test_a_tensor_used_as_index(net):
    _, cuts = follow(net, lambda net, x: net.b(x)[0, net.a(x).argmax(1)[0]])
    assert cuts[0].function == 'argmax'
    assert 2 not in cuts


def test_in_place_results_carry_what_went_in(net):
    def run(net, x):
        out = torch.zeros(3, 2)
        out[:, 0] = net.a(x)[:, 0].detach()
        out.add_(net.b(x).detach())
        return out.sum()

    _, cuts = follow(net, run)
    assert set(cuts) == {0, 1, 2, 3}


def test_a_function_of_unknown_kind_is_taken_as_a_whole(net):
    class Opaque(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.detach().clone()

        @staticmethod
        def backward(ctx, grad):
            return grad

    class Wrapper(nn.Module):
        def forward(self, x):
            return Opaque.apply(x)

    net.wrapper = Wrapper()
    _, cuts = follow(net, lambda net, x: net.wrapper(net.a(x)).detach().sum())
    assert cuts[0].function == 'detach'


def test_questions_are_no_use(net):
    def run(net, x):
        assert net.a.weight.shape[0] == net.a.weight.size(0)
        assert net.a.weight.device == x.device
        return net.b(x).sum()

    flow, _ = follow(net, run)
    assert not flow.is_used(0)
    assert 0 not in flow.no_grad_cuts


def run(modes, depth=1):
    def function(x):
        return list(modes) if depth == 1 else run(modes, depth - 1)

    return checkpoint(function, torch.ones(1), use_reentrant=True)


@pytest.mark.filterwarnings('ignore:None of the inputs')
def test_modes():
    with reentrant_calls() as modes:
        assert run(modes) == [True]
        # The outer one runs its part under no_grad.
        assert run(modes, 2) == [True, False]
        with torch.no_grad():
            assert run(modes) == [False]
        assert modes == []


def test_all_is_as_before():
    before = CheckpointFunction.apply
    with reentrant_calls() as modes:
        assert CheckpointFunction.apply != before
        with pytest.raises(KeyError):
            checkpoint({}.__getitem__, torch.ones(1), use_reentrant=True)
    assert modes == []
    assert CheckpointFunction.apply == before
    assert 'apply' not in vars(CheckpointFunction)
