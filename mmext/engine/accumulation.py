"""Gradients that wait for the optimizer, saved and restored.

With ``accumulative_counts=k`` the optimizer steps after every ``k`` batches,
a window. A checkpoint may be written within one: at the end of an epoch, at
an interval, at a signal. It then holds the gradients of each process, which
differ as they are not averaged yet, and where in its window each optimizer
wrapper is. Restored, the training goes on as if it had not been interrupted.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import Tensor

# Name of the optimizer wrapper -> index of the parameter in its optimizer, or,
# where each task has gradients of its own, task and index -> gradient, on the
# CPU.
Gradients = dict[str, dict[int | tuple[int, int], Tensor]]

# How MMEngine's warning begins, which is not true for a restored window.
_LOST = 'Resumed iteration number is not divisible'


def named_wrappers(optim_wrapper: Any) -> dict[str, OptimWrapper]:
    """Optimizer wrappers by name; a single one has the name ``''``."""
    if isinstance(optim_wrapper, OptimWrapperDict):
        return dict(optim_wrapper.items())
    return {'': optim_wrapper}


def _parameters(wrapper: OptimWrapper) -> Iterator[tuple[int, Tensor]]:
    """Parameters of the optimizer, numbered as in its state."""
    return enumerate(
        parameter
        for group in wrapper.optimizer.param_groups
        for parameter in group['params']
    )


def _divisor(wrapper: OptimWrapper) -> int:
    """What the loss of the last batch was divided by."""
    counts, end = wrapper._accumulative_counts, wrapper._max_counts
    if end < 0 or wrapper._inner_count <= end - wrapper._remainder_counts:
        return counts
    return wrapper._remainder_counts or counts


def _num_open(wrapper: OptimWrapper) -> int:
    """Batches whose gradients wait for the optimizer."""
    if wrapper.should_update():
        return 0
    return wrapper._inner_count % wrapper._accumulative_counts


def get_windows(optim_wrapper: Any, remaining: int) -> dict[str, Any]:
    """Where in its window each wrapper is; ``remaining`` iterations follow.

    Plain numbers only: batches so far (``inner``) and at the end (``end``),
    the length of a window (``counts``), the batches that wait (``open``), and
    what their loss was divided by (``divisor``).
    """
    return {
        'remaining': remaining,
        'wrappers': {
            name: {
                'counts': wrapper._accumulative_counts,
                'inner': wrapper._inner_count,
                'end': wrapper._max_counts,
                'open': _num_open(wrapper),
                'divisor': _divisor(wrapper),
            }
            for name, wrapper in named_wrappers(optim_wrapper).items()
        },
    }


def get_gradients(optim_wrapper: Any) -> Gradients:
    """Gradients that the next step of an optimizer would add to.

    With one optimizer, those of an open window. With several, whatever is
    there: the loss of one network may leave gradients in another.
    """
    wrappers = named_wrappers(optim_wrapper)
    if len(wrappers) == 1 and not _num_open(*wrappers.values()):
        return {}
    result = {}
    for name, wrapper in wrappers.items():
        waiting = {
            index: parameter.grad
            for index, parameter in _parameters(wrapper)
            if parameter.grad is not None
        }
        # Those of the tasks, if it keeps any.
        waiting |= getattr(wrapper, 'task_gradients', dict)()
        for key, gradient in waiting.items():
            gradient = gradient.detach().cpu()
            copied = gradient.clone()
            if gradient.layout == torch.strided and not gradient.any():
                # One of zeros takes no room.
                copied = gradient.new_zeros(()).expand(gradient.shape)
            result.setdefault(name, {})[key] = copied
    return result


def share_equal(
    states: Sequence[Mapping[str, Any] | None], key: str
) -> list[Any]:
    """One entry of all ranks; tensors equal to those of rank 0 are those.

    ``torch.save`` writes a tensor once, however often it occurs.
    """
    values = [None if state is None else state[key] for state in states]

    def shared(value: Any, first: Any) -> Any:
        if isinstance(value, dict):
            first = first if isinstance(first, dict) else {}
            return {
                name: shared(item, first.get(name))
                for name, item in value.items()
            }
        same = (
            isinstance(first, Tensor)
            and value.layout == first.layout == torch.strided
            and value.dtype == first.dtype
            and torch.equal(value, first)
        )
        return first if same else value

    return [
        value if value is None else shared(value, values[0])
        for value in values
    ]


def restore_windows(
    optim_wrapper: Any, saved: Mapping, remaining: int
) -> dict[str, float]:
    """Set the counters; returns the factor for the gradients per wrapper.

    With as many iterations to come as before, all is as it was. In a longer
    training the last window, which ended early, may go on.
    """
    factors = {}
    for name, wrapper in named_wrappers(optim_wrapper).items():
        window = saved['wrappers'].get(name)
        if window is None:
            continue
        counts, inner = wrapper._accumulative_counts, window['inner']
        unchanged = window['open'] == inner % counts
        wrapper._inner_count = inner if unchanged else window['open']
        if wrapper._max_counts >= 0:
            wrapper._max_counts = (
                window['end']
                if unchanged and remaining == saved['remaining']
                else wrapper._inner_count + remaining
            )
            wrapper._remainder_counts = wrapper._max_counts % counts
        factors[name] = window['divisor'] / _divisor(wrapper)
    return factors


def restore_gradients(
    optim_wrapper: Any,
    saved: Sequence[Gradients | None],
    rank: int,
    world_size: int,
    factors: Mapping[str, float],
) -> None:
    """Set the gradients of this rank, as they were.

    With another number of processes, and where those of this rank are
    missing, each gets their mean: the next step then uses the same sum.
    """
    known = [gradients for gradients in saved if gradients is not None]
    own = saved[rank] if len(saved) == world_size else None
    sources = known if own is None else [own]
    for name, wrapper in named_wrappers(optim_wrapper).items():
        parameters = dict(_parameters(wrapper))
        keys = [key for source in sources for key in source.get(name, {})]
        for key in dict.fromkeys(keys):
            parts = [
                source[name][key]
                for source in sources
                if key in source.get(name, {})
            ]
            total = parts[0].clone()
            for part in parts[1:]:
                total += part
            factor = factors.get(name, 1.0) / len(sources)
            if factor != 1:
                total *= factor
            if not isinstance(key, tuple):
                parameters[key].grad = total.to(parameters[key].device)
            else:
                wrapper.add_task_gradient(*key, total)


def is_not_of_lost_gradients(record: logging.LogRecord) -> bool:
    """A filter for the log: MMEngine's warning that gradients are lost."""
    return not str(record.msg).startswith(_LOST)
