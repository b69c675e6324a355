"""Tensors in what a forward returned, their graph, and graphs that are kept.

DDP looks into the output twice, and each time differently: the search for
unused parameters opens lists, tuples, dicts, their subclasses, and
dataclasses; what makes a static graph work and lets unused outputs have empty
gradients opens the containers that ``torch.utils._pytree`` knows, and no
subclass of them. Both are done here by DDP's own functions.

The backward of a step frees what its graph has saved. A tensor that outlives
its step, on a module, in a sample or in a list of somebody's, takes its graph
along; the backward of a later step comes to it, and PyTorch says "Trying to
backward through the graph a second time". What follows from the advice that
comes with it, ``retain_graph=True``, is worse: parameters are updated that the
loss no longer depends on. A table outside of the model, looked up for each
step anew, fails nowhere, and is never trained.
"""

import copy
import functools
import gc
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..findings import frames_of

_MAX_DEPTH = 12
# These hold no results, or are not to be looked into.
_CLOSED = (
    *(type(None), str, bytes, bytearray, bool, int, float, complex, Enum),
    *(type, types.ModuleType, types.FunctionType, types.MethodType),
    *(types.BuiltinFunctionType, nn.Module, torch.dtype, torch.device),
)
# What a copy of an object of the user's may fail with.
_COPY_ERRORS = (
    *(ArithmeticError, AttributeError, LookupError, RuntimeError),
    *(TypeError, ValueError, copy.Error),
)


def passed_tensors(output: Any) -> list[Tensor]:
    """Tensors that DDP passes through a function of its own.

    It does so with ``find_unused_parameters``, and in the first step of a
    static graph: a backward through one of them reaches all of them. Those
    without ``grad_fn`` are returned as they were.
    """
    return [
        leaf
        for leaf in tree_flatten(output)[0]
        if isinstance(leaf, Tensor) and leaf.requires_grad
    ]


def joined(output: Any) -> Any:
    """The same output, as DDP returns it.

    The tensors of :func:`passed_tensors` are results of one function, so any
    backward goes through all of them.
    """
    leaves, structure = tree_flatten(output)
    indices = [
        index
        for index, leaf in enumerate(leaves)
        if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    if not indices:
        return output
    results = _Join.apply(*(leaves[index] for index in indices))
    for index, result in zip(indices, results):
        if leaves[index].grad_fn is not None:
            leaves[index] = result
    return tree_unflatten(leaves, structure)


class _Join(torch.autograd.Function):
    """Returns what it gets; its backward reaches all of it."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple:
        return grads


def all_tensors(output: Any) -> list[Tensor]:
    """All tensors in an output, each once.

    Containers of any kind are opened, and what objects have as attributes;
    what a function would return is not known.
    """
    tensors: dict[int, Tensor] = {}
    for tensor in _walk(output, set(), 0):
        tensors.setdefault(id(tensor), tensor)
    return list(tensors.values())


def trainable_tensors(output: Any) -> list[Tensor]:
    """All tensors in an output that need gradients."""
    return [tensor for tensor in all_tensors(output) if tensor.requires_grad]


def _walk(value: Any, seen: set[int], depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    if isinstance(value, _CLOSED) or depth > _MAX_DEPTH or id(value) in seen:
        return
    seen.add(id(value))
    for item in _stored(value):
        yield from _walk(item, seen, depth + 1)


def _stored(value: Any) -> Iterator[Any]:
    """What an object holds as items and as attributes."""
    if isinstance(value, Mapping):
        yield from list(value.values())
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from list(value)
    own = getattr(value, '__dict__', None)
    if isinstance(own, dict):
        yield from list(own.values())
    for name in _slots(value):
        yield getattr(value, name)


def _slots(value: Any) -> list[str]:
    """Attributes of an object that are not in its ``__dict__``."""
    names = []
    for kind in type(value).__mro__:
        slots = kind.__dict__.get('__slots__', ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name.startswith('__') and not name.endswith('__'):
                name = f'_{kind.__name__.lstrip("_")}{name}'
            if name not in ('__dict__', '__weakref__') and hasattr(
                value, name
            ):
                names.append(name)
    return names


def unopened_containers(output: Any) -> tuple[str, ...]:
    """Classes in an output that hold tensors and that DDP does not open.

    Those that only one of its two ways opens are among them.
    """
    kinds = dict.fromkeys(
        f'{type(leaf).__module__}.{type(leaf).__qualname__}'
        for leaf in tree_flatten(output)[0]
        if not isinstance(leaf, Tensor)
        and any(tensor.requires_grad for tensor in all_tensors(leaf))
    )
    return tuple(kinds)


class OpenedOutput:
    """An output as a list of tensors, and the way back.

    Args:
        output: Of a forward.
    """

    def __init__(self, output: Any) -> None:
        self._output = output
        self.tensors = all_tensors(output)

    def close(self, tensors: Iterable[Tensor]) -> Any:
        """The output with other tensors, given in the same order.

        Containers that hold one of them are copied, as DDP does. An output
        that cannot be copied is left as it is.
        """
        new = {
            id(old): tensor
            for old, tensor in zip(self.tensors, tensors, strict=True)
        }
        holds: dict[int, bool] = dict.fromkeys(new, True)
        others: dict[int, Any] = {}
        _find_holders(self._output, holds, others, 0)
        try:
            # What holds none of them stays itself.
            return copy.deepcopy(self._output, others | new)
        except _COPY_ERRORS:
            return self._output


def _find_holders(
    value: Any, holds: dict[int, bool], others: dict[int, Any], depth: int
) -> bool:
    """Whether something holds a tensor; all that does not is in ``others``."""
    key = id(value)
    if key not in holds:
        # Until it is known: an object may hold itself.
        holds[key] = False
        if not isinstance(value, _CLOSED) and depth <= _MAX_DEPTH:
            inner = [
                _find_holders(item, holds, others, depth + 1)
                for item in _stored(value)
            ]
            holds[key] = any(inner)
        if not holds[key]:
            others[key] = value
    return holds[key]


def open_output(output: Any) -> OpenedOutput | None:
    """Open an output of which DDP does not open all; else None."""
    if not unopened_containers(output):
        return None
    return OpenedOutput(output)


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


# What PyTorch says of a graph that was freed, or whose values have changed.
_FREED = 'backward through the graph a second time'
_CHANGED = 'has been modified by an inplace operation'
_MAX_PLACES = 3
# Of a module's own attributes; parameters are leaves, modules come by name.
_MODULE_OWN = frozenset(('_parameters', '_modules'))
_MAX_KEPT_DEPTH = 5
_CONTAINERS = (list, tuple, set, frozenset, deque)


def kept_tensors(model: nn.Module) -> dict[str, list[Tensor]]:
    """Tensors with a graph by module and attribute.

    Attributes and buffers are searched, lists, dicts and plain objects in them
    included.
    """
    kept: dict[str, list[Tensor]] = {}
    for location, named in _held_tensors(model):
        tensors = [t for _, t in named if t.grad_fn is not None]
        if tensors:
            kept[location] = tensors
    return kept


def foreign_parameters(
    model: nn.Module, groups: Iterable[Mapping[str, Any]]
) -> dict[str, Tensor]:
    """Parameters in groups of an optimizer that are not a model's, by path.

    The path is that of an attribute of the model, as ``layers[0].weight`` for
    a layer in a list, or else the position in the groups.
    """
    own = set(map(id, model.parameters()))
    foreign = {
        id(parameter): (f"param_groups[{i}]['params'][{j}]", parameter)
        for i, group in enumerate(groups)
        for j, parameter in enumerate(group['params'])
        if id(parameter) not in own
    }
    paths: dict[int, str] = {}
    for _, named in _held_tensors(model) if foreign else ():
        for path, tensor in named:
            paths.setdefault(id(tensor), path)
    return {
        paths.get(key, position): parameter
        for key, (position, parameter) in foreign.items()
    }


def _held_tensors(
    model: nn.Module,
) -> Iterator[tuple[str, list[tuple[str, Tensor]]]]:
    """Tensors in the attributes and buffers of modules, by attribute.

    Each tensor with its path.
    """
    seen: set[int] = set()
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute in _MODULE_OWN:
                continue
            values = value if attribute == '_buffers' else {attribute: value}
            for key, item in values.items():
                location = f'{name}.{key}' if name else key
                yield location, list(_named(location, item, seen))


class StaleGraphError(RuntimeError):
    """The loss of a step depends on a graph that an earlier step built."""


@contextmanager
def name_stale_graphs(model: nn.Module, batch: Any) -> Iterator[None]:
    """Name what holds the graph of an earlier step, if a step fails for it.

    The model has no wrapper; the batch is what the data loader gave. A
    StaleGraphError takes the place of PyTorch's error, and names the attribute
    or the sample, and the parameters.
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
        held = [
            (f'the attribute {location!r} of the model holds it', tensor)
            for location, tensors in kept_tensors(model).items()
            for tensor in tensors
        ]
        held += [
            (f'{location}, from the data loader, holds it', tensor)
            for location, tensor in _named('batch', batch, set())
        ]
        locations = _stale_locations(held, names, nodes)
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

    ``groups`` are those of the optimizers. Yields an empty list, which after
    the step has a description of each tensor.
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
    for tensor in (*model.parameters(), *all_tensors((groups, batch))):
        leaves.pop(id(tensor), None)
    if any(
        (tensor := leaf()) is not None and tensor.grad is not None
        for leaf, _ in leaves.values()
    ):
        # What the step itself has made goes, where cycles still hold it.
        gc.collect()
    for key, (leaf, function) in leaves.items():
        tensor = leaf()
        if tensor is None or tensor.grad is None:
            continue
        text = f'a tensor of shape {tuple(tensor.shape)}'
        result.append(f'{text}, used by {function}')
        for location, value in _named('batch', batch, set()):
            if key in graph_leaves([value]):
                result[-1] = f'{text}, of which {location} is computed'
                break


def _named(
    location: str, value: Any, seen: set[int], depth: int = _MAX_KEPT_DEPTH
) -> Iterator[tuple[str, Tensor]]:
    """Tensors in a value, by their path, once for each object.

    A module has the paths of its parameters.
    """
    if isinstance(value, Tensor):
        yield location, value
        return
    if depth == 0 or id(value) in seen:
        return
    if isinstance(value, nn.Module):
        items = [(f'{location}.{n}', p) for n, p in value.named_parameters()]
    elif isinstance(value, Mapping):
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
        leaves = {id(leaf): (leaf, node) for leaf, node in leaves_after(stale)}
        used = sorted(names[leaf] for leaf in leaves if leaf in names)
        text = f'made by {last.name()}'
        if used:
            more = len(used) - _MAX_PLACES
            text += f' from the parameters {", ".join(used[:_MAX_PLACES])}'
            text += f' and {more} more' if more > 0 else ''
        elif leaves:
            # A table that is not in the model: what reads it, not a view.
            leaf, node = next(iter(leaves.values()))
            text += f' from a tensor of shape {tuple(leaf.shape)}'
            text += f', which {node.name()} uses'
        results[location] = f'{location} ({text})'
    return list(results.values())
