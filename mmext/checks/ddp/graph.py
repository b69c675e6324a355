"""Walks over what a forward returned and over its autograd graph."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from .outputs import all_tensors


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Tensors in nested lists, tuples, dicts and dataclasses.

    For arguments; :func:`~mmext.checks.ddp.outputs.all_tensors` opens
    anything.
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
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def named_tensors(value: Any) -> dict[str, list[Tensor]]:
    """The tensors of a forward's result, by the key of the outermost dict."""
    if isinstance(value, Mapping):
        return {str(k): all_tensors(item) for k, item in value.items()}
    return {'': all_tensors(value)}


def graph_nodes(tensors: Iterable[Tensor]) -> set[Any]:
    """All functions in the graph of some tensors.

    Leaves are included; what a reentrant checkpoint holds is not in it.
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


def graph_leaves(tensors: Iterable[Tensor]) -> set[int]:
    """``id`` of each leaf that gradients of some tensors reach.

    A tensor that is itself a leaf and needs gradients is one of them.
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
