"""Explain a step that goes through the graph of an earlier one.

The backward of a step frees what its graph has saved. A tensor that outlives
its step, on a module, in a sample or in a list of somebody's, takes its graph
along; the backward of a later step comes to it, and PyTorch says "Trying to
backward through the graph a second time". What follows from the advice that
comes with it, ``retain_graph=True``, is worse: parameters are updated that the
loss no longer depends on.

A table outside of the model, looked up for each step anew, fails nowhere, and
is never trained.
"""

import functools
import gc
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..findings import frames_of
from .graph import (
    all_tensors,
    graph_leaves,
    graph_nodes,
    leaves_after,
    next_number,
)

# What PyTorch says of a graph that was freed, or whose values have changed.
_FREED = 'backward through the graph a second time'
_CHANGED = 'has been modified by an inplace operation'
_MAX_PLACES = 3
# Of a module's own attributes; parameters are leaves, modules come by name.
_MODULE_OWN = frozenset(('_parameters', '_modules'))
_MAX_DEPTH = 5
_CONTAINERS = (list, tuple, set, frozenset, deque)


def kept_tensors(model: nn.Module) -> dict[str, list[Tensor]]:
    """Tensors with a graph by module and attribute.

    Attributes and buffers are searched, lists, dicts and plain objects in them
    included.
    """
    kept: dict[str, list[Tensor]] = {}
    seen: set[int] = set()
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute in _MODULE_OWN:
                continue
            values = value if attribute == '_buffers' else {attribute: value}
            for key, item in values.items():
                location = f'{name}.{key}' if name else key
                tensors = [t for _, t in _named(location, item, seen)]
                if tensors:
                    kept[location] = tensors
    return kept


class StaleGraphError(RuntimeError):
    """The loss of a step depends on a graph that an earlier step built."""


@contextmanager
def name_stale_graphs(model: nn.Module, batch: Any) -> Iterator[None]:
    """Name what holds the graph of an earlier step, if a step fails for it.

    Args:
        model: The model that is trained, without a wrapper.
        batch: What the data loader gave for this step.

    Raises:
        StaleGraphError: In place of PyTorch's error, from which it is raised.
            It names the attribute or the sample, and the parameters.
    """
    begin = next_number()
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if _FREED not in text and _CHANGED not in text:
            raise
        losses = {
            id(value): value
            for frame, _ in frames_of(error)
            for value in frame.f_locals.values()
            if isinstance(value, Tensor) and value.grad_fn is not None
        }.values()
        nodes = {
            node for node in graph_nodes(losses) if node._sequence_nr() < begin
        }
        # The loss leads to a graph that is held, too, and says less of it.
        unheld = [
            ('neither the model nor the batch holds it', loss)
            for loss in losses
        ]
        names = {id(p): name for name, p in model.named_parameters()}
        locations = _stale_locations(_held(model, batch), names, nodes)
        locations = locations or _stale_locations(unheld, names, nodes)
        if not locations:
            raise
        more = len(locations) - _MAX_PLACES
        end = f', and {more} more' if more > 0 else ''
        raise StaleGraphError(
            'the loss of this step goes through a graph that an earlier step '
            f'built: {"; ".join(locations[:_MAX_PLACES])}{end}. Compute the '
            'value in each forward, from the batch; or, if it is to stay as '
            'it is, store it with value.detach() and keep its parameters out '
            'of the optimizer. retain_graph=True would only hide the error: '
            'the parameters would be updated, and the loss would not depend '
            'on them'
        ) from error


@contextmanager
def find_outsiders(
    model: nn.Module, groups: Any, batch: Any
) -> Iterator[list[str]]:
    """Find what outlives a step and gets gradients that nobody uses.

    Args:
        model: The model that is trained, without a wrapper.
        groups: Of parameters, those of its optimizers.
        batch: What the data loader gave for this step.

    Yields:
        An empty list; after the step it has a description of each tensor.
    """
    original, result, leaves = torch.autograd.backward, [], {}

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        for leaf, node in leaves_after(graph_nodes(all_tensors(tensors))):
            leaves[id(leaf)] = weakref.ref(leaf), node.name()
        original(tensors, *args, **kwargs)

    torch.autograd.backward = backward
    try:
        yield result
    finally:
        torch.autograd.backward = original
    known = {
        id(t) for t in (*model.parameters(), *all_tensors((groups, batch)))
    }
    if leaves.keys() - known:
        # What the step itself has made goes.
        gc.collect()
    for key, (leaf, function) in leaves.items():
        tensor = None if key in known else leaf()
        if tensor is None or tensor.grad is None:
            continue
        text = f'a tensor of shape {tuple(tensor.shape)}'
        result.append(f'{text}, used by {function}')
        for location, value in _named('batch', batch, set()):
            if key in graph_leaves([value]):
                result[-1] = f'{text}, of which {location} is computed'
                break


def _held(model: nn.Module, batch: Any) -> Iterator[tuple[str, Tensor]]:
    """Tensors with a graph that outlive a step, and where they are."""
    for location, tensors in kept_tensors(model).items():
        for tensor in tensors:
            yield f'the attribute {location!r} of the model holds it', tensor
    for location, tensor in _named('batch', batch, set()):
        yield f'{location}, from the data loader, holds it', tensor


def _named(
    location: str, value: Any, seen: set[int], depth: int = _MAX_DEPTH
) -> Iterator[tuple[str, Tensor]]:
    """Tensors with a graph in a value, by their path, once for each object.

    Modules are not looked into.
    """
    if isinstance(value, Tensor):
        if value.grad_fn is not None:
            yield location, value
        return
    if depth == 0 or id(value) in seen:
        return
    if isinstance(value, Mapping):
        items = [(f'{location}[{key!r}]', item) for key, item in value.items()]
    elif isinstance(value, _CONTAINERS):
        items = [(f'{location}[{i}]', item) for i, item in enumerate(value)]
    elif hasattr(value, '__dict__') and not callable(value):
        items = [(location, item) for item in vars(value).values()]
    else:
        return
    seen.add(id(value))
    for path, item in items:
        yield from _named(path, item, seen, depth - 1)


def _stale_locations(
    holders: Iterable[tuple[str, Tensor]],
    names: dict[int, str],
    nodes: set[Any],
) -> list[str]:
    """Those that lead to old functions of the loss, with a description."""
    results: dict[str, str] = {}
    for location, tensor in holders:
        stale = graph_nodes([tensor]) & nodes
        if not stale or location in results:
            continue
        last = max(stale, key=lambda node: node._sequence_nr())
        leaves = {id(leaf) for leaf, _ in leaves_after(stale)}
        used = sorted(names[leaf] for leaf in leaves if leaf in names)
        text = f'made by {last.name()}'
        if used:
            more = len(used) - _MAX_PLACES
            text += f' from the parameters {", ".join(used[:_MAX_PLACES])}'
            text += f' and {more} more' if more > 0 else ''
        results[location] = f'{location} ({text})'
    return list(results.values())
