"""Types of the arithmetic, and what the decorator switches off."""

import pytest
import torch

from mmext.ops._precision import exact, wide_type, widen


@pytest.mark.parametrize(
    ('dtype', 'wide'),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.int64, torch.float32),
    ],
)
def test_widen(dtype, wide):
    x = torch.ones(2, dtype=dtype)
    assert wide_type(x) == widen(x).dtype == wide
    assert (widen(x) is x) == (dtype == wide)


def test_exact_runs_without_autocast_and_autograd(device):
    @exact
    def product(a, b, *, negate=False):
        """Multiply."""
        return -(a @ b) if negate else a @ b

    x = torch.randn(3, 3, requires_grad=True, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        result = product(x, x, negate=True)
        assert (x @ x).dtype == torch.bfloat16
        assert torch.is_grad_enabled()
    assert result.dtype == torch.float32
    assert not result.requires_grad
    assert torch.equal(product(a=x, b=x), -result)
    assert (product.__name__, product.__doc__) == ('product', 'Multiply.')
