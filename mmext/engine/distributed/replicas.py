"""Compare weights and gradients between processes, by sums of their bits."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NUM_WEIGHTS = 65521  # the largest prime below 2 ** 16


def checksum(tensor: Tensor) -> Tensor:
    """A scalar int64 that tells tensors apart that differ in any bit.

    The bits, read as integers, are added up with weights that depend on the
    position, modulo 2 ** 64. Equal bits give equal sums on every device and
    in every order of addition. NaN equals the same NaN.
    """
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    if flat.dtype == torch.bool:
        flat = flat.to(torch.uint8)
    bits = flat.contiguous().view(_INTEGERS[flat.element_size()])
    weights = torch.arange(bits.numel(), device=bits.device)
    weights = weights.remainder_(_NUM_WEIGHTS).add_(1)
    return (bits.to(torch.int64) * weights).sum()


# Of each parameter: sums of the bits of its weights and of its gradient, None
# without one.
ReplicaSums = Mapping[str, tuple[int, int | None]]


def replica_sums(
    module: nn.Module, ignored: Iterable[str] = ()
) -> ReplicaSums:
    """Sums of the trainable parameters of a module and of their gradients.

    Note:
        Reads all of them once, and synchronises the device.
    """
    ignored = set(ignored)
    named = [
        (name, parameter)
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]
    sums = [checksum(parameter) for _, parameter in named]
    grads = [p.grad for _, p in named if p.grad is not None]
    sums += [
        checksum(grad if grad.layout is torch.strided else grad.to_dense())
        for grad in grads
    ]
    device = sums[0].device if sums else None
    values = [s.to(device) for s in sums]
    values = torch.stack(values).tolist() if sums else []
    of_grads = iter(values[len(named) :])
    return {
        name: (value, None if p.grad is None else next(of_grads))
        for (name, p), value in zip(named, values)
    }


def different_names(
    sums: Sequence[ReplicaSums],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parameters whose weights, and whose gradients, are not all the same."""
    names = dict.fromkeys(name for item in sums for name in item)
    weights, gradients = [], []
    for name in names:
        pairs = [item.get(name, (None, None)) for item in sums]
        if len({weight for weight, _ in pairs}) > 1:
            weights.append(name)
        if len({gradient for _, gradient in pairs}) > 1:
            gradients.append(name)
    return tuple(weights), tuple(gradients)
