"""Let all processes learn in the same step that one of them has failed."""

from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
from torch import distributed as dist

__all__ = ['PeerError', 'StepVote', 'Vote', 'peer_gone']

# For a process that fails: how long it waits for others to come to the end of
# their backward. They may be waiting for it in a collective of the forward.
_FAILED_TIMEOUT_S = 60


class PeerError(RuntimeError):
    """Another process has failed in this step, or is gone."""


def peer_gone(error: Exception) -> PeerError:
    """The error for a collective that another process did not come to."""
    return PeerError(
        'another process has ended, or does not answer, before the end of '
        f'this step; see its output. This one got: {error}'
    )


class Vote(IntEnum):
    """What a process says at the end of a backward; the largest counts."""

    OK = 0
    GRADIENTS = 1
    ERROR = 2


class StepVote:
    """A vote per step over Gloo, beside the collectives of the training.

    It costs one reduction of one number between CPUs. A group of its own
    keeps it apart from reductions that other processes have begun and this
    one never will.

    Args:
        process_group: The processes that average their gradients.
    """

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size(process_group)
        self._group = None
        if self.size > 1:
            whole = process_group is dist.group.WORLD
            self._group = dist.new_group(
                dist.get_process_group_ranks(process_group),
                backend='gloo',
                use_local_synchronization=not whole,
            )

    def cast(self, vote: Vote) -> Vote:
        """Vote, and learn what counts. Waits for the other processes.

        Args:
            vote: What this process says.

        Returns:
            The largest vote.

        Raises:
            PeerError: If another process is gone, or does not answer.
        """
        if self._group is None:
            return vote
        flag = torch.tensor([int(vote)], dtype=torch.int32)
        try:
            work = dist.all_reduce(
                flag, dist.ReduceOp.MAX, self._group, async_op=True
            )
            if vote is Vote.ERROR:
                work.wait(timedelta(seconds=_FAILED_TIMEOUT_S))
            else:
                work.wait()
        except RuntimeError as error:
            raise peer_gone(error) from error
        return Vote(int(flag))

    def exchange(self, value: Any) -> list[Any]:
        """Send a picklable object to all, and get those of all."""
        if self._group is None:
            return [value]
        values = [None] * self.size
        dist.all_gather_object(values, value, self._group)
        return values
