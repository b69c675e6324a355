"""Compare weights and gradients between processes, by sums of their bits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn

from ...checks.ddp import AVERAGE_ALL, filled, name_lines

_DRIFT_HEAD = (
    'the replicas of the model drift apart: at this step of the optimizer '
    '{} differ between the processes'
)
_DRIFT_ADVICE = (
    f'{AVERAGE_ALL[0].upper()}{AVERAGE_ALL[1:]}; average what is computed by '
    'hand (torch.autograd.grad, p.grad = ...) with '
    'torch.distributed.all_reduce before the optimizer steps; and change '
    'weights in the same way in all processes.'
)
_OUT_OF_STEP = (
    'the processes are out of step: rank {} is at {}, rank {} at {}; all must '
    'run as many backwards and steps of the optimizer as the others'
)
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


class Doubt(str, Enum):
    """Why gradients may not be the same in all processes."""

    NONE = ''
    AGAIN = (
        'gradients were added after they had been averaged: there was more '
        'than one backward for a forward of the wrapper, or one without it'
    )
    NEVER = (
        'no backward has gone through what forward returned since it was '
        'called, so nothing was averaged'
    )
    NOT_PASSED = (
        'DDP has found no tensor with a gradient in what forward returned, '
        'which static_graph needs; return the losses in a dict, list or tuple'
    )


@dataclass(frozen=True)
class ReplicaReport:
    """Sums of weights and gradients of one process, and why they are doubted.

    ``location`` is the step of the optimizer, or the backward, that they are
    of.
    """

    rank: int
    location: str
    doubt: Doubt
    sums: ReplicaSums


def drift_of(reports: Sequence[ReplicaReport]) -> str:
    """The text of an error, empty if all replicas are the same."""
    first = reports[0]
    for other in reports[1:]:
        if other.location != first.location:
            return _OUT_OF_STEP.format(
                first.rank, first.location, other.rank, other.location
            )
    weights, gradients = [], []
    for name in dict.fromkeys(name for r in reports for name in r.sums):
        pairs = [report.sums.get(name, (None, None)) for report in reports]
        if len({weight for weight, _ in pairs}) > 1:
            weights.append(name)
        if len({gradient for _, gradient in pairs}) > 1:
            gradients.append(name)
    if not weights and not gradients:
        return ''
    kinds = [
        f'the {kind} of {len(names)} parameter(s)'
        for kind, names in (('weights', weights), ('gradients', gradients))
        if names
    ]
    names = tuple(dict.fromkeys((*gradients, *weights)))
    lines = [_DRIFT_HEAD.format(' and '.join(kinds))]
    lines += name_lines(names)
    doubts = dict.fromkeys(r.doubt.value for r in reports if r.doubt.value)
    lines += [filled(doubt) for doubt in doubts]
    return '\n'.join([*lines, '', filled(_DRIFT_ADVICE)])
