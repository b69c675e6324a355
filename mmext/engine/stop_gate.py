"""Let all processes of a run stop at the same step, without collectives.

A signal may reach one rank or all, at different steps. If ranks stopped each
where it is, one would wait for ever in a collective that another one no
longer enters. They agree through one key of the key-value store of the
process group. Without a signal this costs each rank one look-up per step and
no synchronisation of devices.

A run is a sequence of *units*, the same on all ranks: a training step, the
way from a step into a validation, an evaluation. A unit may contain
collectives, so once a rank has begun a unit all ranks have to finish it.
Between two units a rank asks :meth:`StopGate.should_stop`:

* No stop was requested: go on.
* A stop is requested: the rank enters itself into the key, by compare and
  set, along with the unit that it is about to begin.
* The last rank to enter closes the key: the stop is after the furthest unit
  that any rank has begun, or right here if none is ahead. Each rank stops
  when it has finished that unit.

No rank waits in this, so none is kept from contributing to a collective that
a slower rank is in; a rank that has entered works on until the key is closed.
The key is only ever replaced as a whole if nobody else has changed it since,
so a unit is either begun and counted in before the key is closed, or never
begun. Nothing is assumed about how far apart ranks may drift, so gradient
accumulation and devices that run ahead of Python are covered.
"""

import json
import time
from dataclasses import dataclass
from typing import Protocol

__all__ = ['KeyValueStore', 'LocalStore', 'StopGate']

_POLL_S = 0.05
# A rank answers after each step and each batch of a validation. One that has
# not for so long after a signal is not there any more: a launcher that loses
# a process sends that signal to the others.
_ANSWER_S = 30


class KeyValueStore(Protocol):
    """The part of ``torch.distributed.Store`` that is used."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        ...

    def get(self, key: str) -> bytes:
        """Value of a key."""
        ...

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Replace an expected value; returns what is there now."""
        ...

    def add(self, key: str, amount: int) -> int:
        """Add to a number; returns the sum."""
        ...


class LocalStore:
    """The same for a single process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return all(key in self._values for key in keys)

    def get(self, key: str) -> bytes:
        """Value of a key."""
        return self._values[key]

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Replace an expected value; returns what is there now."""
        old = self._values.get(key, b'')
        if old == expected.encode():
            self._values[key] = desired.encode()
        return self._values.get(key, b'')

    def add(self, key: str, amount: int) -> int:
        """Add to a number; returns the sum."""
        value = int(self._values.get(key, b'0')) + amount
        self._values[key] = str(value).encode()
        return value


@dataclass
class _State:
    """Content of the key."""

    signum: int
    ranks: list[int]
    begun: int
    stop_at: int | None = None

    def text(self) -> str:
        return json.dumps(vars(self))


class StopGate:
    """One rank's view of the agreement on where to stop.

    Args:
        store: Shared by all ranks.
        rank: This rank.
        world_size: Number of ranks.
        key: Name of the key, one per run.

    Examples:
        >>> store = LocalStore()
        >>> fast, slow = (StopGate(store, rank, 2) for rank in (0, 1))
        >>> fast.finish_unit(), fast.should_stop(begin=True)
        (1, False)
        >>> slow.request(15)  # a signal during its first step
        >>> slow.finish_unit(), slow.should_stop(begin=True)
        (1, False)
        >>> fast.finish_unit(), fast.should_stop(begin=True)
        (2, True)
        >>> slow.finish_unit(), slow.should_stop(begin=True)
        (2, True)
    """

    def __init__(
        self,
        store: KeyValueStore,
        rank: int = 0,
        world_size: int = 1,
        key: str = 'mmext/stop',
    ) -> None:
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.key = key
        self.signum: int | None = None
        self._finished = 0
        self._num_meetings = 0

    def request(self, signum: int) -> None:
        """Ask for a stop. Only sets a variable, so a handler may call it.

        Args:
            signum: The signal, remembered on all ranks.
        """
        if self.signum is None:
            self.signum = signum

    def finish_unit(self) -> int:
        """Note that a unit is finished; returns how many are."""
        self._finished += 1
        return self._finished

    def should_stop(self, *, begin: bool) -> bool:
        """Whether to stop here.

        Args:
            begin: If the answer is no, the next unit is begun. False at a
                place where a rank may stop or go on without a collective.
        """
        if self.signum is None and not self.store.check([self.key]):
            return False
        text = (
            self.store.get(self.key).decode()
            if self.store.check([self.key])
            else ''
        )
        while True:
            wanted, answer = self._next_state(text, begin)
            if wanted is None:
                return answer
            new = self.store.compare_set(self.key, text, wanted).decode()
            if new == wanted:
                return answer
            text = new  # another rank was faster

    def _next_state(self, text: str, begin: bool) -> tuple[str | None, bool]:
        """What the key should become, None for no change; and the answer."""
        if text:
            state = _State(**json.loads(text))
        else:
            state = _State(self.signum, [], 0)
        self.signum = state.signum
        if state.stop_at is not None:
            return None, self._finished >= state.stop_at
        ranks = {*state.ranks, self.rank}
        if len(ranks) == self.world_size:
            # All others are between units too, or in one that is counted.
            state.stop_at = max(state.begun, self._finished)
            state.ranks = sorted(ranks)
            return state.text(), self._finished >= state.stop_at
        begun = max(state.begun, self._finished + begin)
        if state.ranks == sorted(ranks) and state.begun == begun:
            return None, False
        state.ranks, state.begun = sorted(ranks), begun
        return state.text(), False

    def meet(self, timeout_s: float) -> bool:
        """Wait until all ranks are here, or until it is time to stop.

        To be called before a unit whose collectives block for long, from
        where a rank could not answer: the next unit is begun on return.

        Args:
            timeout_s: How long to wait for the others, in seconds.

        Returns:
            Whether to stop here, as :meth:`should_stop`.

        Raises:
            TimeoutError: If a rank does not come, or does not answer to a
                signal.
        """
        self._num_meetings += 1
        name = f'{self.key}/meeting{self._num_meetings}'
        deadline = time.monotonic() + timeout_s
        signalled = False
        arrived = self.store.add(name, 1)
        while True:
            complete = arrived >= self.world_size
            if self.should_stop(begin=complete):
                return True
            if complete:
                return False
            if self.signum is not None and not signalled:
                signalled = True
                deadline = min(deadline, time.monotonic() + _ANSWER_S)
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f'only {arrived} of {self.world_size} processes came to '
                    f'the end of the validation within {timeout_s:g} s, or '
                    f'{_ANSWER_S} s after a signal; see the output of the '
                    'others, or raise env_cfg.dist_cfg.timeout'
                )
            time.sleep(_POLL_S)
            arrived = self.store.add(name, 0)
