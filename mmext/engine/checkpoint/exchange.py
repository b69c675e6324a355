"""Bring the states of all processes to the one that saves them."""

import pickle
import time
from collections.abc import Mapping
from typing import Any

from torch import distributed as dist

from ..distributed import lost_ranks, waiting_for_ranks

# A store takes values of up to 8 MiB.
_PIECE_BYTES = 4 << 20


def exchange_states(
    store: dist.Store,
    name: str,
    state: Mapping[str, Any],
    *,
    rank: int,
    world_size: int,
    timeout_s: float,
) -> list[Mapping[str, Any] | None]:
    """Bring the states of all ranks to rank 0, which waits for them.

    Through the store and not by a collective, in which rank 0 would hang
    where only rank 0 was asked to save, as some hooks do. ``name`` is the
    same on all ranks and used once. Rank 0 gets one state per rank, None for
    one of which nothing has come for ``timeout_s`` seconds, or that is gone;
    the others get an empty list.
    """
    deadline = time.monotonic() + timeout_s
    with waiting_for_ranks('the states of the ranks'):
        if rank > 0:
            _send(store, f'mmext/state/{name}/{rank}', state)
            return []
        others = [
            _receive(store, name, other, deadline, timeout_s)
            for other in range(1, world_size)
        ]
    return [state, *others]


def _send(store: dist.Store, key: str, state: Mapping[str, Any]) -> None:
    data = pickle.dumps(state)
    pieces = range(0, len(data), _PIECE_BYTES)
    store.set(key, str(len(pieces)))
    for number, start in enumerate(pieces):
        store.set(f'{key}/{number}', data[start : start + _PIECE_BYTES])


def _receive(
    store: dist.Store, name: str, rank: int, deadline: float, timeout_s: float
) -> Mapping[str, Any] | None:
    """The state of a rank; each piece prolongs the wait for the next."""
    key = f'mmext/state/{name}/{rank}'
    num = _take(store, key, rank, deadline)
    data = []
    for number in range(int(num or 0)):
        later = time.monotonic() + timeout_s
        piece = _take(store, f'{key}/{number}', rank, later)
        if piece is None:
            return None
        data.append(piece)
    return pickle.loads(b''.join(data)) if data else None


def _take(
    store: dist.Store, key: str, rank: int, deadline: float
) -> bytes | None:
    """Take a value out; None if it is late, or its rank is gone."""
    while not store.check([key]):
        if time.monotonic() > deadline or rank in lost_ranks():
            return None
        time.sleep(0.01)
    value = store.get(key)
    store.delete_key(key)
    return value
