"""The random number generators of a process, saved and restored."""

import pickle
import random
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

__all__ = ['exchange_rng_states', 'get_rng_state', 'set_rng_state']


def get_rng_state() -> dict[str, Any]:
    """State of Python's, numpy's and torch's global generators.

    Returns:
        Tensors and plain Python values only, so that it can be stored in a
        checkpoint that is read without running code. ``cuda``, the generator
        of the current CUDA device, is there once CUDA is in use.

    Examples:
        >>> state = get_rng_state()
        >>> first = random.random(), float(torch.rand(()))
        >>> set_rng_state(state)
        >>> first == (random.random(), float(torch.rand(())))
        True
    """
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    state = {
        'python': random.getstate(),
        'numpy': (
            str(kind),
            torch.from_numpy(keys.astype(np.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ),
        'torch': torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state['cuda'] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Put the generators back to a state.

    Args:
        state: What :func:`get_rng_state` returned. ``cuda`` is left out where
            there is no CUDA.
    """
    version, internal, gauss = state['python']
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state['numpy']
    np.random.set_state(
        (kind, keys.numpy().astype(np.uint32), position, has_gauss, cached)
    )
    torch.set_rng_state(state['torch'].cpu())
    if 'cuda' in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['cuda'].cpu())


def exchange_rng_states(
    store: dist.Store,
    name: str,
    state: Mapping[str, Any],
    *,
    rank: int,
    world_size: int,
    timeout_s: float,
) -> list[Mapping[str, Any] | None]:
    """Bring the states of all ranks to rank 0.

    Through the store and not by a collective, in which rank 0 would hang
    where only rank 0 was asked to save, as some hooks do.

    Args:
        store: Shared by all ranks.
        name: Of this exchange, the same on all ranks and used once.
        state: Of this rank.
        rank: This rank.
        world_size: Number of ranks.
        timeout_s: How long rank 0 waits for the others, in seconds.

    Returns:
        On rank 0 one state per rank, None for one that did not come;
        elsewhere an empty list.
    """
    if rank > 0:
        store.set(f'mmext/rng/{name}/{rank}', pickle.dumps(state))
        return []
    states: list[Mapping[str, Any] | None] = [state]
    deadline = time.monotonic() + timeout_s
    for other in range(1, world_size):
        key = f'mmext/rng/{name}/{other}'
        while not store.check([key]) and time.monotonic() < deadline:
            time.sleep(0.01)
        if store.check([key]):
            states.append(pickle.loads(store.get(key)))
            store.delete_key(key)
        else:
            states.append(None)
    return states
