"""What processes agree on: that none has failed, that replicas are the same.

They vote in each step, so that all learn in the same one that one of them has
failed. Weights and gradients are compared by sums of their bits.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, IntEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from ...checks.ddp import (
    AVERAGE_ALL,
    REGISTER,
    filled,
    group_lines,
    name_lines,
)
from .report import peer_gone, peers_elsewhere
from .watch import group_timeout_s

# For a process that fails: how long it waits for others to come to the end of
# their backward. They may be waiting for it in a collective of the forward.
_FAILED_TIMEOUT_S = 10
_POLL_S = 0.05

# Bits of the number that is reduced by "or": one of the votes, of the steps
# modulo 16, and of the two answers to whether the data are at their end. Where
# all agree on the last two, two bits are set.
_FIRST_STEP, _STEPS = 1 << 4, 16
_FIRST_END = _FIRST_STEP << _STEPS

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


class Vote(IntEnum):
    """What a process says at the end of a backward; the largest counts."""

    OK = 0
    # What follows is an exchange, to find out whether all is well.
    DOUBT = 1
    GRADIENTS = 2
    ERROR = 3


# Votes of a process that need not be in the step in which the others are.
_ANYWHERE = (Vote.DOUBT, Vote.ERROR)


class StepVote:
    """A vote per step over Gloo, beside the collectives of the training.

    It costs one reduction of one number between CPUs. A group of its own
    keeps it apart from reductions that other processes have begun and this
    one never will. It waits as long as the collectives of the training may
    take: ``env_cfg.dist_cfg.timeout`` of a config.

    Args:
        process_group: The processes that average their gradients.
        connect: Connect them now, for which all have to come; else in the
            first vote.
    """

    def __init__(
        self, process_group: dist.ProcessGroup, *, connect: bool = True
    ) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size(process_group)
        self.timeout_s = group_timeout_s(process_group)
        self._work: dist.Work | None = None
        self._process_group = process_group
        self._group: dist.ProcessGroup | None = None
        if connect:
            self._connect()

    def _connect(self) -> None:
        if self.size == 1 or self._group is not None:
            return
        whole = self._process_group is dist.group.WORLD
        self._group = dist.new_group(
            dist.get_process_group_ranks(self._process_group),
            backend='gloo',
            timeout=timedelta(seconds=self.timeout_s),
            use_local_synchronization=not whole,
        )

    def cast(
        self, vote: Vote, step: int | None = 0, *, at_end: bool = False
    ) -> Vote:
        """Vote, wait for the other processes, and return the largest vote.

        The number of the ``step`` must be the same in all processes, unless
        one has failed or is in doubt; None is for a process that has no step
        of its own. All must come to the end of their data together
        (``at_end``).

        Raises:
            PeerError: If another process is gone, does not answer in time, or
                is in another step.
        """
        self._connect()
        if self._group is None:
            return vote
        bits = 1 << vote
        if step is not None:
            bits |= _FIRST_STEP << step % _STEPS | _FIRST_END << at_end
        flags = torch.full((1,), bits, dtype=torch.int32)
        limit = self.timeout_s
        if vote is Vote.ERROR:
            limit = min(limit, _FAILED_TIMEOUT_S)
        try:
            dist.all_reduce(
                flags, dist.ReduceOp.BOR, self._group, async_op=True
            ).wait(timedelta(seconds=limit))
        except RuntimeError as error:
            raise peer_gone(error) from error
        bits = int(flags)
        result = Vote((bits % _FIRST_STEP).bit_length() - 1)
        locations = bits // _FIRST_STEP
        if result not in _ANYWHERE and locations.bit_count() != 2:
            raise peers_elsewhere(self.exchange((self.rank, step, at_end)))
        return result

    def begin_largest(self, number: int) -> None:
        """Give a number, of which :meth:`end_largest` has the largest."""
        self._numbers = torch.tensor([number])
        self._work = dist.all_reduce(
            self._numbers, dist.ReduceOp.MAX, self._group, async_op=True
        )

    def end_largest(self, wait: Callable[[], Any]) -> int:
        """The largest number that a process has given; 0 if none was begun.

        While others have not given theirs, ``wait`` is called again and
        again, and this process can handle signals.

        Raises:
            PeerError: If another process is gone, or does not answer in time.
        """
        if self._work is None:
            return 0
        # Processes that are equally fast do not wait for a full interval.
        pause_s = _POLL_S / 512
        try:
            while not self._work.is_completed():
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _POLL_S)
                if pause_s == _POLL_S:
                    wait()
            self._work.wait()
        except RuntimeError as error:
            raise peer_gone(error) from error
        self._work = None
        return int(self._numbers)

    def exchange(self, value: Any) -> list[Any]:
        """Send a picklable object to all, and get those of all.

        Raises:
            PeerError: If another process is gone, or does not answer in time.
        """
        if self._group is None:
            return [value]
        values = [None] * self.size
        try:
            dist.all_gather_object(values, value, self._group)
        except RuntimeError as error:
            raise peer_gone(error) from error
        return values


# Replicas --------------------------------------------------------------------


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
    module: nn.Module,
    ignored: Iterable[str] = (),
    foreign: Mapping[str, Tensor] = {},
) -> ReplicaSums:
    """Sums of the trainable parameters of a module and of their gradients.

    Also of ``foreign`` ones that have a gradient.

    Note:
        Reads all of them once, and synchronises the device.
    """
    ignored = set(ignored)
    named = [
        (name, parameter)
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]
    named += [(n, p) for n, p in foreign.items() if p.grad is not None]
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
    of. ``foreign`` are parameters of the optimizer that the module does not
    have.
    """

    rank: int
    location: str
    doubt: Doubt
    sums: ReplicaSums
    foreign: tuple[str, ...] = ()


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
    head = _DRIFT_HEAD.format(' and '.join(kinds))
    foreign = {name for report in reports for name in report.foreign}
    if foreign.issuperset(names):
        return '\n'.join([head, *foreign_lines(names)])
    lines = [head, *name_lines(names)]
    doubts = dict.fromkeys(r.doubt.value for r in reports if r.doubt.value)
    lines += [filled(doubt) for doubt in doubts]
    return '\n'.join([*lines, '', filled(_DRIFT_ADVICE)])


def foreign_lines(names: Sequence[str]) -> list[str]:
    """Lines about parameters that the optimizer has and the model has not."""
    text = (
        'in the optimizer, but not in the model, so DDP does not average the '
        'gradients, and a checkpoint does not have the weights:'
    )
    advice = f'{REGISTER[0].upper()}{REGISTER[1:]}.'
    return [*map(filled, group_lines(text, names)), filled(advice)]
