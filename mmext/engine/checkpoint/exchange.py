"""Bring the states of all processes to the one that saves them."""

import pickle
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.dist import get_dist_info
from mmengine.runner import Runner
from torch import Tensor, nn
from torch import distributed as dist

from ...utils.torch_compat import has_key
from ...utils.training import get_rng_state
from ..accumulation import get_gradients, get_windows, share_equal
from ..distributed import current_watch, unwrap_model
from ..launch import default_store
from ..loops import remaining_iterations

# A store takes values of up to 8 MiB.
_PIECE_BYTES = 4 << 20
# How long rank 0 waits for the states of the others, which arrive unless only
# rank 0 was asked to save; and how long when there was a signal, which may be
# due to the loss of a process.
_RNG_TIMEOUTS_S = {False: 20, True: 8}


class MissingRanksError(RuntimeError):
    """A checkpoint was not written, as some ranks did not come to save it."""


def saved_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Buffers that are saved, such as the statistics of batch norm."""
    saved = module.state_dict(keep_vars=True)
    return {
        name: buffer.detach()
        for name, buffer in module.named_buffers()
        if name in saved
    }


def gather_states(
    runner: Runner, name: str, *, from_all: bool
) -> list[dict | None]:
    """What each rank has of its own, on rank 0; nothing elsewhere.

    ``name`` is of the checkpoint and its iteration, the same on all ranks.
    With ``from_all`` a rank that does not come is a :class:`MissingRanksError`
    on rank 0.
    """
    rank, world_size = get_dist_info()
    model = unwrap_model(runner.model)
    state = {
        'rng': getattr(runner.train_loop, 'rng_before_val', None)
        or get_rng_state(),
        'gradients': get_gradients(runner.optim_wrapper),
        'buffers': {
            name: buffer.cpu()
            for name, buffer in saved_buffers(model).items()
            if world_size > 1
        },
    }
    if world_size == 1:
        return [state]
    runner._num_saves = getattr(runner, '_num_saves', Counter())
    runner._num_saves[name] += 1
    # Through the store and not by a collective, in which rank 0 would hang
    # where only rank 0 was asked to save, as some hooks do. Used once.
    store = default_store()
    key = f'mmext/state/{runner.timestamp}/{name}/{runner._num_saves[name]}'
    if rank > 0:
        data = pickle.dumps(state)
        pieces = range(0, len(data), _PIECE_BYTES)
        store.set(f'{key}/{rank}', str(len(pieces)))
        for number, start in enumerate(pieces):
            piece = data[start : start + _PIECE_BYTES]
            store.set(f'{key}/{rank}/{number}', piece)
        return []
    signalled = any(
        getattr(hook, 'is_requested', False) for hook in runner.hooks
    )
    timeout_s = min(_RNG_TIMEOUTS_S[signalled], runner.dist_timeout_s)
    deadline = time.monotonic() + timeout_s
    states = [state]
    for other in range(1, world_size):
        states.append(
            _receive(store, f'{key}/{other}', other, deadline, timeout_s)
        )
    missing = ', '.join(str(n) for n, item in enumerate(states) if not item)
    if missing and from_all:
        raise MissingRanksError(
            f'{name} was not written, as rank {missing} did not come to save '
            f'it within {timeout_s:g} s; earlier checkpoints are untouched. '
            f'{current_watch().report()}'
        )
    if missing:
        runner.logger.warning(
            f'{name} is saved without the states of rank {missing}, which did '
            f'not save: {current_watch().report()}'
        )
    return states


def states_to_save(
    runner: Runner, meta: Mapping[str, Any], states: Sequence[dict | None]
) -> dict[str, Any]:
    """States of all ranks, for the metadata; equal tensors are saved once."""
    windows = get_windows(
        runner.optim_wrapper,
        remaining_iterations(
            runner.train_loop,
            meta['epoch'],
            meta['iter'],
            meta['batch_in_epoch'],
        ),
    )
    if any(state and state['gradients'] for state in states):
        windows['gradients'] = share_equal(states, 'gradients')
    buffers = share_equal(states, 'buffers')
    return {
        'rng_states': [state and state['rng'] for state in states],
        'accumulation': windows,
        'rank_buffers': [
            own
            and {
                name: buffer
                for name, buffer in own.items()
                if buffer is not buffers[0][name]
            }
            for own in buffers
        ],
    }


def _receive(
    store: dist.Store, key: str, rank: int, deadline: float, timeout_s: float
) -> Mapping[str, Any] | None:
    """The state of a rank; each piece prolongs the wait for the next.

    None if nothing has come for ``timeout_s`` seconds, or the rank is gone.
    """
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
    while not has_key(store, key):
        lost = current_watch().lost_ranks()
        if time.monotonic() > deadline or rank in lost:
            return None
        time.sleep(0.01)
    value = store.get(key)
    store.delete_key(key)
    return value
