"""Kernels are compiled before the first step, by a first call of each."""

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .choice import backend_of

if TYPE_CHECKING:
    import torch
    from torch import nn

_ready: set[str] = set()


def compile_kernels(
    model: 'nn.Module',
    device: 'torch.device',
    logger: logging.Logger | str | None = 'current',
) -> None:
    """Compile the kernels of a model before its first step, and log the time.

    They would be compiled at their first call otherwise. What was compiled
    before is read from the disk. Nothing happens where numba is not used.

    Args:
        model: Its modules say which operators it calls.
        device: Where the model runs.
        logger: As in :func:`log_backend`.
    """
    from mmengine.logging import print_log

    wanted = [
        name
        for name in dict.fromkeys(_operators(model))
        if backend_of(name, device.type) == 'numba' and name not in _ready
    ]
    if not wanted:
        return
    start = time.perf_counter()
    for name in wanted:
        _first_call(name)
    _ready.update(wanted)
    print_log(
        f'Kernels of {", ".join(wanted)}: ready after '
        f'{time.perf_counter() - start:.1f} s',
        logger=logger,
    )


# Classes of modules -> the operator that they call.
_USERS = {
    'DeformableAttention': 'ms_deform_attn',
    'RoIAlign': 'roi_align',
}


def _operators(model: 'nn.Module') -> Iterator[str]:
    """Operators that the modules of a model call, and their settings name."""
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind.__name__ in _USERS:
                yield _USERS[kind.__name__]
        for name in ('train_cfg', 'test_cfg'):
            yield from _suppressions(getattr(module, name, None))


def _suppressions(cfg: Any) -> Iterator[str]:
    """Kinds of suppression that a head's settings ask for."""
    if isinstance(cfg, Mapping):
        kind = cfg.get('type')
        if kind in ('nms', 'soft_nms', 'nms_match'):
            yield kind
        cfg = cfg.values()
    elif not isinstance(cfg, list | tuple):
        return
    for value in cfg:
        yield from _suppressions(value)


def _first_call(operator: str) -> None:
    """Call an operator, forward and backward, on as little as possible."""
    import torch
    from mmcv import ops

    from .ms_deform_attn import multi_scale_deform_attn

    one = torch.zeros(1, 1, 1, 1, requires_grad=True)
    boxes, scores = torch.zeros(1, 4), torch.zeros(1)
    level = torch.ones(1, 2, dtype=torch.long), torch.zeros(1).long()
    calls = {
        'ms_deform_attn': lambda: multi_scale_deform_attn(
            one, *level, one.new_zeros(1, 1, 1, 1, 1, 2), one[None]
        ),
        'nms': lambda: ops.nms(boxes, scores, 0.5)[0],
        'soft_nms': lambda: ops.soft_nms(boxes, scores)[0],
        'nms_match': lambda: ops.nms_match(one[0, 0].new_zeros(1, 5), 0.5)[0],
        'roi_align': lambda: ops.roi_align(one, one.new_zeros(1, 5), 1),
    }
    out = calls[operator]()
    if out.requires_grad:
        out.sum().backward()
