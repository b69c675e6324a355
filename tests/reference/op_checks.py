"""Values and gradients of one call, for comparing two implementations."""

from collections.abc import Callable

import torch
from torch import Tensor


def values_and_grads(
    function: Callable[..., Tensor],
    inputs: dict[str, Tensor | None],
    cotangent: Tensor | None = None,
) -> dict[str, Tensor]:
    """Output of a call and the gradient of each floating input.

    Args:
        function: Called with the inputs as keywords.
        inputs: Tensors and other values.
        cotangent: What the output is multiplied with before it is summed;
            random but always the same where it is None.

    Returns:
        ``output`` and one entry per input that has a gradient, detached.
    """
    copies = {
        name: value.detach().clone().requires_grad_()
        if isinstance(value, Tensor) and value.is_floating_point()
        else value
        for name, value in inputs.items()
    }
    output = function(**copies)
    if cotangent is None:
        seed = torch.Generator().manual_seed(0)
        cotangent = torch.randn(output.shape, generator=seed)
        cotangent = cotangent.to(output)
    (output * cotangent).sum().backward()
    grads = {
        name: copy.grad
        for name, copy in copies.items()
        if isinstance(copy, Tensor) and copy.grad is not None
    }
    return {'output': output.detach(), **grads}


def assert_same(
    actual: dict[str, Tensor],
    expected: dict[str, Tensor],
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """All entries of ``expected`` are in ``actual``, with these values."""
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name].cpu(),
            value.cpu(),
            rtol=rtol,
            atol=atol,
            check_dtype=False,
            msg=lambda text, name=name: f'{name}: {text}',
        )
