"""Walks over what a forward returned and over its autograd graph."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

__all__ = ['graph_leaves', 'named_tensors', 'tensors_in']


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples, dicts and dataclasses.

    These are the places where DDP looks for tensors, too.
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            yield from tensors_in(getattr(value, item.name))


def named_tensors(value: Any) -> dict[str, list[Tensor]]:
    """The tensors of a forward's result, by the key of the outermost dict."""
    if isinstance(value, Mapping):
        return {str(k): list(tensors_in(item)) for k, item in value.items()}
    return {'': list(tensors_in(value))}


def graph_leaves(tensors: Iterable[Tensor]) -> set[int]:
    """Leaves that gradients of some tensors reach.

    Args:
        tensors: Where to start. Those without a graph have no leaves; a
            leaf that needs gradients is one itself.

    Returns:
        ``id`` of each leaf tensor in the graph. A reentrant checkpoint ends
        the walk: what it holds are not leaves of this graph.
    """
    leaves, stack, seen = set(), [], set()
    for tensor in tensors:
        if tensor.grad_fn is not None:
            stack.append(tensor.grad_fn)
        elif tensor.requires_grad:
            leaves.add(id(tensor))
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, 'variable', None)
        if variable is not None:
            leaves.add(id(variable))
        stack.extend(item for item, _ in node.next_functions if item)
    return leaves
