"""Linear layers by oneDNN are PyTorch's, with gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from mmext.ops import linear as module
from mmext.ops.linear import apply_linear, is_plain, linear, linear_product


@pytest.fixture(autouse=True)
def called(monkeypatch) -> list[torch.Size]:
    """Takes oneDNN, and says for which rows."""
    monkeypatch.setenv('MMEXT_OPS', 'onednn')
    monkeypatch.setattr(module, 'LEAST', 1)
    rows = []
    forward = module._Linear.forward

    def recorded(ctx, *inputs):
        rows.append(inputs[0].shape)
        return forward(ctx, *inputs)

    monkeypatch.setattr(module._Linear, 'forward', staticmethod(recorded))
    return rows


def layer_and_input(
    *shape: int, out: int = 7
) -> tuple[nn.Linear, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(shape[-1], out), torch.randn(shape, requires_grad=True)


@pytest.mark.parametrize(
    'shape', [(1, 5), (300, 64), (2, 33, 40), (5,), (1, 2, 3, 8)], ids=str
)
@pytest.mark.parametrize('bias', [True, False])
def test_values_and_gradients_of_float64(shape, bias, called):
    layer, x = layer_and_input(*shape)
    weight, offset = layer.weight, layer.bias if bias else None
    inputs = [tensor for tensor in (x, weight, offset) if tensor is not None]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    actual, expected = linear(*inputs), F.linear(*exact)
    direction = torch.randn(expected.shape)
    torch.testing.assert_close(actual, expected.float(), rtol=1e-6, atol=1e-5)
    for one, other in zip(
        torch.autograd.grad(actual, inputs, direction),
        torch.autograd.grad(expected, exact, direction.double()),
        strict=True,
    ):
        torch.testing.assert_close(one, other.float(), rtol=1e-6, atol=1e-5)
    # The product, and that of the gradient of its rows.
    assert len(called) == 2


def test_gradients_of_gradients():
    layer, x = layer_and_input(20, 16)
    results = []
    for function in (linear, F.linear):
        out = function(x, layer.weight, layer.bias).tanh().sum()
        (grad,) = torch.autograd.grad(out, x, create_graph=True)
        results.append(
            torch.autograd.grad(grad.square().sum(), (x, layer.weight))
        )
    for actual, expected in zip(*results):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_only_the_gradients_that_are_wanted(called):
    layer, x = layer_and_input(20, 16)
    apply_linear(layer, x.detach()).sum().backward()
    assert called == [x.shape]
    layer.requires_grad_(False)
    layer.weight.grad = None
    apply_linear(layer, x).sum().backward()
    assert layer.weight.grad is None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(20, 16))


def test_views_and_rows_that_are_not_next_to_each_other():
    rows, weight = torch.randn(40, 32)[:, ::2], torch.randn(16, 24)
    torch.testing.assert_close(
        linear_product(rows, weight.t()), rows @ weight, rtol=1e-5, atol=1e-5
    )
    turned = torch.randn(3, 16, 5).transpose(1, 2)
    torch.testing.assert_close(
        linear(turned, weight.t()), turned @ weight, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize('backend', ['onednn', 'pytorch'])
@pytest.mark.parametrize('bias', [torch.arange(4.0), None])
def test_out_is_written(backend, bias, monkeypatch):
    monkeypatch.setenv('MMEXT_OPS', backend)
    rows, weight = torch.randn(6, 3), torch.randn(4, 3)
    out = torch.full((6, 4), float('nan'))
    assert linear_product(rows, weight, bias, out) is out
    torch.testing.assert_close(out, F.linear(rows, weight, bias))


def test_nothing_that_is_not_a_number_is_lost():
    layer, x = layer_and_input(3, 8)
    x = x.detach()
    x[0, 0], x[1, 1] = float('nan'), float('inf')
    rows = apply_linear(layer, x)
    assert rows[0].isnan().all()
    assert rows[1].isinf().all()
    assert rows[2].isfinite().all()


@pytest.mark.parametrize(
    'x',
    [torch.zeros(0, 8), torch.ones(2, 8).double()],
    ids=['empty', 'double'],
)
def test_what_onednn_has_not(x, called):
    weight = torch.ones(4, 8, dtype=x.dtype)
    assert linear(x, weight).equal(F.linear(x, weight))
    assert called == []


def test_small_products_stay_those_of_pytorch(called, monkeypatch):
    layer, x = layer_and_input(2, 4, 8, out=16)
    monkeypatch.setattr(module, 'LEAST', x.numel() * 16)
    apply_linear(layer, x)
    assert called == [(8, 8)]
    apply_linear(layer, x[:, :3])
    assert len(called) == 1


def test_bfloat16():
    rows, weight = (
        torch.randn(50, 32).bfloat16(),
        torch.randn(8, 32).bfloat16(),
    )
    product = linear_product(rows, weight)
    assert product.dtype == torch.bfloat16
    torch.testing.assert_close(
        product.float(), rows.float() @ weight.float().t(), rtol=0.02, atol=0.1
    )


def test_autocast_decides_the_type(called):
    layer, x = layer_and_input(20, 16)
    with torch.autocast('cpu', torch.bfloat16):
        assert apply_linear(layer, x).dtype == torch.bfloat16
    assert called == []


class TwiceLinear(nn.Linear):
    """A layer that someone put in the place of another."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_layers_that_do_more_are_called(called):
    layer, x = layer_and_input(20, 16)
    expected = layer(x)
    assert is_plain(layer, (nn.Linear,))
    twice = TwiceLinear(16, 7)
    twice.load_state_dict(layer.state_dict())
    torch.testing.assert_close(apply_linear(twice, x), 2 * expected)
    handle = layer.register_forward_hook(lambda *args: args[-1] + 1)
    torch.testing.assert_close(apply_linear(layer, x), expected + 1)
    handle.remove()
    parametrize.register_parametrization(layer, 'weight', nn.Tanh())
    assert not apply_linear(layer, x).allclose(expected)
    assert called == []


def test_a_trace_has_the_standard_operator():
    layer, x = layer_and_input(20, 16)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return apply_linear(self.layer, x)

    program = torch.export.export(Model(), (x.detach(),))
    targets = {str(node.target) for node in program.graph.nodes}
    assert 'aten.linear.default' in targets
    graph = str(torch.jit.trace(Model(), x.detach()).inlined_graph)
    assert 'aten::linear' in graph
    assert 'mkldnn' not in graph
