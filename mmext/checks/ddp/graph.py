"""Walks over what a forward returned and over its autograd graph."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .outputs import all_tensors


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


def leaves_after(nodes: Iterable[Any]) -> Iterator[tuple[Tensor, Any]]:
    """Leaves that functions lead to directly, each with the function."""
    for node in nodes:
        for after, _ in node.next_functions:
            leaf = getattr(after, 'variable', None)
            if leaf is not None:
                yield leaf, node


def next_number() -> int:
    """Number of the function that autograd makes next in this thread."""
    with torch.enable_grad():
        node = torch.zeros((), requires_grad=True).exp().grad_fn
    return node._sequence_nr() + 1
