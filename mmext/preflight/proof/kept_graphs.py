"""Find tensors with a graph that a model keeps after a step.

A module that keeps what it has computed, for the next step or for nobody,
keeps the graph with it. If the next step uses it, its backward goes through a
graph that is gone: "Trying to backward through the graph a second time".
"""

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

__all__ = ['kept_tensors']

# Of a module's own attributes; parameters are leaves, modules come by name.
_MODULE_OWN = frozenset(('_parameters', '_modules'))
_MAX_DEPTH = 5
_CONTAINERS = (list, tuple, set, frozenset, deque)


def kept_tensors(model: nn.Module) -> dict[str, list[Tensor]]:
    """Tensors with a graph on modules.

    Args:
        model: It is searched with its attributes and buffers, lists, dicts
            and plain objects in them included.

    Returns:
        Module and attribute -> the tensors there.

    Examples:
        >>> import torch
        >>> model = nn.Linear(2, 2)
        >>> model.last = [model(torch.ones(1, 2))]
        >>> list(kept_tensors(model))
        ['last']
    """
    found: dict[str, list[Tensor]] = {}
    seen: set[int] = set()
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute in _MODULE_OWN:
                continue
            if attribute == '_buffers':
                places = [(key, item) for key, item in value.items()]
            else:
                places = [(attribute, value)]
            for key, item in places:
                place = f'{name}.{key}' if name else key
                tensors = list(_tensors(item, seen, _MAX_DEPTH))
                if tensors:
                    found[place] = tensors
    return found


def _tensors(value: Any, seen: set[int], depth: int) -> Iterator[Tensor]:
    """Tensors with a graph in a value."""
    if isinstance(value, Tensor):
        if value.grad_fn is not None:
            yield value
        return
    if isinstance(value, nn.Module | str | bytes) or depth == 0:
        return
    for item in _items(value, seen):
        yield from _tensors(item, seen, depth - 1)


def _items(value: Any, seen: set[int]) -> list[Any]:
    """What a value holds, once for each object."""
    if isinstance(value, Mapping):
        items = list(value.values())
    elif isinstance(value, _CONTAINERS):
        items = list(value)
    elif dataclasses.is_dataclass(value) or hasattr(value, '__dict__'):
        if isinstance(value, type) or callable(value):
            return []
        items = (
            list(vars(value).values()) if hasattr(value, '__dict__') else []
        )
    else:
        return []
    if id(value) in seen:
        return []
    seen.add(id(value))
    return items
