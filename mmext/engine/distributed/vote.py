"""Let all processes learn in the same step that one of them has failed."""

import time
from collections.abc import Callable
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
from torch import distributed as dist

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
    """

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size(process_group)
        self.timeout_s = group_timeout_s(process_group)
        self._group = None
        if self.size > 1:
            whole = process_group is dist.group.WORLD
            self._group = dist.new_group(
                dist.get_process_group_ranks(process_group),
                backend='gloo',
                timeout=timedelta(seconds=self.timeout_s),
                use_local_synchronization=not whole,
            )

    def cast(self, vote: Vote, step: int = 0, *, at_end: bool = False) -> Vote:
        """Vote, wait for the other processes, and return the largest vote.

        Args:
            vote: Of this process.
            step: Number of its step. It must be the same in all processes,
                unless one has failed or is in doubt.
            at_end: This process has come to the end of its data. All must
                come to it together.

        Raises:
            PeerError: If another process is gone, does not answer in time, or
                is in another step.
        """
        if self._group is None:
            return vote
        bits = 1 << vote | _FIRST_STEP << step % _STEPS | _FIRST_END << at_end
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

    def largest(self, number: int, wait: Callable[[], Any]) -> int:
        """The largest number of all processes.

        While others do not give theirs, ``wait`` is called again and again,
        and this process can handle signals.

        Raises:
            PeerError: If another process is gone, or does not answer in time.
        """
        if self._group is None:
            return number
        result = torch.tensor([number])
        try:
            work = dist.all_reduce(
                result, dist.ReduceOp.MAX, self._group, async_op=True
            )
            # Processes that are equally fast do not wait for a full interval.
            pause_s = _POLL_S / 512
            while not work.is_completed():
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _POLL_S)
                if pause_s == _POLL_S:
                    wait()
            work.wait()
        except RuntimeError as error:
            raise peer_gone(error) from error
        return int(result)

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
