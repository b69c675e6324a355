"""The feed-forward part computes what mmcv's does, and keeps less."""

import copy

import pytest
import torch
from mmcv.cnn.bricks.transformer import FFN

from mmext.models.co_dino.feed_forward import PART, FeedForward

DIMS, HIDDEN = 16, 48


def pair(dropout: float = 0.0) -> tuple[FeedForward, FFN]:
    """Ours and mmcv's with the same weights."""
    torch.manual_seed(0)
    ours = FeedForward(DIMS, HIDDEN, dropout)
    theirs = FFN(DIMS, HIDDEN, ffn_drop=dropout)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    return ours, theirs


def run(module: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Output, and gradients of the input and all parameters."""
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    out = module(x)
    inputs = (x, *module.parameters())
    return [out, *torch.autograd.grad(out.square().sum(), inputs)]


@pytest.mark.parametrize(
    'shape',
    [
        pytest.param((1, 2 * PART + 5, DIMS), id='parts'),
        (2, 7, DIMS),
        (1, 0, DIMS),
        (3, DIMS),
    ],
    ids=str,
)
@pytest.mark.parametrize('dropout', [0.0, 0.3])
def test_is_that_of_mmcv(shape, dropout):
    ours, theirs = pair(dropout)
    x = torch.randn(shape)
    for result, expected in zip(run(ours, x), run(theirs, x)):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-4)


def test_autocast():
    ours, theirs = pair()
    x = torch.randn(1, PART + 3, DIMS)
    with torch.autocast('cpu', torch.bfloat16):
        output, expected = run(ours, x), run(theirs, x)
    assert [value.dtype for value in output] == [
        value.dtype for value in expected
    ]
    for one, other in zip(output, expected):
        error = (one - other).norm() / other.norm()
        assert error < 0.01


def test_frozen_layers_and_no_gradient():
    ours, theirs = pair()
    x = torch.randn(1, 5, DIMS)
    for module in (ours, theirs):
        module.layers[0][0].requires_grad_(False)
        module(x).sum().backward()
        assert module.layers[0][0].weight.grad is None
    torch.testing.assert_close(
        ours.layers[1].weight.grad, theirs.layers[1].weight.grad
    )
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))


def test_hidden_values_are_not_kept():
    saved = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.shape)
        return tensor

    ours, theirs = pair()
    x = torch.randn(1, 9, DIMS, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ours(x)
        kept = list(saved)
        theirs(x)
    assert not [shape for shape in kept if shape[-1] == HIDDEN and 9 in shape]
    assert [shape for shape in saved if shape[-1] == HIDDEN and 9 in shape]


def test_hooks_and_other_layers_are_called():
    ours, _ = pair()
    x = torch.randn(1, 5, DIMS)
    expected = ours(x)
    calls = []
    ours.layers[1].register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(ours(x), expected)
    assert calls == [1]

    class TwiceAsLarge(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    ours, _ = pair()
    layer = TwiceAsLarge(HIDDEN, DIMS)
    layer.load_state_dict(ours.layers[1].state_dict())
    ours.layers[1] = layer
    torch.testing.assert_close(ours(x) - x, 2 * (expected - x))


@pytest.mark.slow
def test_a_copy_and_an_export():
    ours, _ = pair()
    x = torch.randn(1, PART + 1, DIMS)
    torch.testing.assert_close(copy.deepcopy(ours)(x), ours(x))
    program = torch.export.export(ours.eval(), (x,))
    torch.testing.assert_close(program.module()(x), ours(x))
    names = {str(node.target) for node in program.graph.nodes}
    assert not [name for name in names if 'InParts' in name]
