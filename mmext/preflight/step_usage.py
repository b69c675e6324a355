"""What one training step did with each parameter."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ['Firing', 'ParameterUse', 'StepUsage', 'UnusedReason']


class UnusedReason(str, Enum):
    """Why a trainable parameter got no gradient."""

    NEVER_USED = 'never used in forward'
    BRANCH_NOT_TAKEN = 'in a branch that was not taken for this batch'
    NOT_IN_LOSS = 'used in forward, but its output is not in the loss'
    DETACHED = 'detached on its way to the loss'
    NO_GRAD = 'used under no_grad'
    CHECKPOINT_INPUT = (
        'used in a reentrant checkpoint whose input needs no gradient'
    )
    FROZEN = 'frozen (requires_grad=False) after the model was wrapped'


@dataclass(frozen=True)
class Firing:
    """One time that a gradient was complete, as DDP's hooks see it.

    Attributes:
        name: The parameter.
        task: Number of the backward pass it happened in: 0 for the one that
            was called, another number for each nested one.
        empty: Whether it is known to have added nothing to the gradient.
    """

    name: str
    task: int
    empty: bool = False


@dataclass(frozen=True)
class ParameterUse:
    """Why a parameter is not in order, and where.

    Attributes:
        reason: The reason.
        place: Module, function and line, as far as known, else empty.
        detail: What else is known, else empty.
    """

    reason: UnusedReason
    place: str = ''
    detail: str = ''


@dataclass(frozen=True)
class StepUsage:
    """What one forward and backward did with the trainable parameters.

    Holds only names and numbers, so that it can be sent between processes.

    Attributes:
        names: All trainable parameters, in the order of
            ``named_parameters()``.
        firings: All completed gradients, in their order.
        reachable: Parameters in the autograd graph of what ``forward``
            returned, which is what DDP searches with
            ``find_unused_parameters=True``.
        unused: Reason for each parameter without any firing.
        reentrant: For each parameter whose gradient came from a nested
            backward, which is what a reentrant checkpoint runs: the module
            that was checkpointed, and the place in the code where known.
        module_calls: How often the forward of each module ran; those that
            did not run are absent.
        joint_firings: The same as ``firings``, for a backward that goes
            through all that ``forward`` returned, whether it is in the loss
            or not: with ``find_unused_parameters``, and in the first step of
            a static graph. None if it makes no difference.
        reran: Modules whose forward ran again in the backward, as those in
            activation checkpoints of any kind do.
        call_sites: For each parameter that was used in a reentrant
            checkpoint: the line that called it, as far as known.
    """

    names: tuple[str, ...]
    firings: tuple[Firing, ...]
    reachable: frozenset[str]
    unused: Mapping[str, ParameterUse] = field(default_factory=dict)
    reentrant: Mapping[str, str] = field(default_factory=dict)
    module_calls: Mapping[str, int] = field(default_factory=dict)
    joint_firings: tuple[Firing, ...] | None = None
    reran: tuple[str, ...] = ()
    call_sites: Mapping[str, str] = field(default_factory=dict)

    def counts(self, *, joint: bool = False) -> dict[str, int]:
        """How often each parameter fired; 0 is listed, too.

        Args:
            joint: Count :attr:`joint_firings`.
        """
        counts = dict.fromkeys(self.names, 0)
        firings = self.joint_firings if joint else self.firings
        for firing in self.firings if firings is None else firings:
            counts[firing.name] += 1
        return counts

    @property
    def twice(self) -> tuple[str, ...]:
        """Parameters that fired more than once."""
        return tuple(n for n, count in self.counts().items() if count > 1)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Parameters that fired, but that a search does not find."""
        return tuple(
            name
            for name, count in self.counts().items()
            if count and name not in self.reachable
        )

    @property
    def outside_forward(self) -> tuple[str, ...]:
        """Hidden ones that no checkpoint hides: used outside ``forward``."""
        return tuple(n for n in self.hidden if n not in self.reentrant)

    def without_unused(self) -> 'StepUsage':
        """The same step, had the unused parameters not been there."""
        counts = self.counts()
        return StepUsage(
            names=tuple(name for name in self.names if counts[name]),
            firings=self.firings,
            reachable=self.reachable,
            reentrant=self.reentrant,
            module_calls=self.module_calls,
            call_sites=self.call_sites,
        )

    def without_reentrant(self) -> 'StepUsage':
        """The same step, had its checkpoints not been reentrant.

        Each parameter then fires once, in the outer pass, and is found,
        those included whose checkpoint got an input without gradient.
        """
        dead = {
            name
            for name, use in self.unused.items()
            if use.reason is UnusedReason.CHECKPOINT_INPUT
        }
        fired = dict.fromkeys([*(f.name for f in self.firings), *dead])
        return StepUsage(
            names=self.names,
            firings=tuple(Firing(name, 0) for name in fired),
            reachable=self.reachable | set(self.reentrant) | dead,
            unused={
                name: use
                for name, use in self.unused.items()
                if name not in dead
            },
            module_calls=self.module_calls,
        )
