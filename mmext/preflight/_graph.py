"""Walks over what a forward returned and over its autograd graph."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = [
    'graph_leaves',
    'graph_nodes',
    'hides_parameters',
    'joined',
    'named_tensors',
    'tensors_in',
]


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
    tensors = list(tensors)
    leaves = {
        id(tensor)
        for tensor in tensors
        if tensor.grad_fn is None and tensor.requires_grad
    }
    for node in graph_nodes(tensors):
        variable = getattr(node, 'variable', None)
        if variable is not None:
            leaves.add(id(variable))
    return leaves


def graph_nodes(tensors: Iterable[Tensor]) -> set[Any]:
    """All functions in the graph of some tensors, leaves included.

    Args:
        tensors: Where to start. Those without a graph have none.

    Returns:
        The functions; a reentrant checkpoint is one of them.
    """
    stack = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack.extend(item for item, _ in node.next_functions if item)
    return seen


def hides_parameters(tensors: Sequence[Tensor], loss: Tensor) -> bool:
    """Whether a backward of more than the loss may have other firings.

    An empty gradient is enough to make a function that is written in Python,
    as a reentrant checkpoint is, do its backward; and it makes a parameter
    fire, perhaps besides a reentrant checkpoint.

    Args:
        tensors: What a forward returned.
        loss: What was computed of them.
    """
    returned, needed = graph_nodes(tensors), graph_nodes([loss])
    if returned <= needed:
        return False
    kind = torch.autograd.function.BackwardCFunction
    return any(isinstance(node, kind) for node in returned | needed)


class _Join(torch.autograd.Function):
    """Returns what it gets; its backward reaches all of it."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple:
        return grads


def joined(value: Any) -> Any:
    """What a forward returned, such that any backward goes through all of it.

    DDP does so to what it searches for unused parameters.

    Args:
        value: Nested dicts, lists and tuples of tensors.

    Returns:
        The same, with tensors that share one function.
    """
    tensors = [t for t in tensors_in(value) if t.grad_fn is not None]
    if not tensors:
        return value
    results = _Join.apply(*tensors)
    return _replaced(value, {id(t): r for t, r in zip(tensors, results)})


def _replaced(value: Any, new: Mapping[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return new.get(id(value), value)
    if isinstance(value, Mapping):
        return {key: _replaced(item, new) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_replaced(item, new) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value
