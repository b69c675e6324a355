"""Tensors in what a forward returned: those DDP finds, and all of them.

DDP looks into the output twice, and each time differently: the search for
unused parameters opens lists, tuples, dicts, their subclasses, and
dataclasses; what makes a static graph work and lets unused outputs have empty
gradients opens the containers that ``torch.utils._pytree`` knows, and no
subclass of them. Both are done here by DDP's own functions.
"""

import copy
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import distributed as torch_ddp
from torch.utils._pytree import tree_flatten, tree_unflatten

_MAX_DEPTH = 12
# These hold no results, or are not to be looked into.
_CLOSED = (
    type(None),
    str,
    bytes,
    bytearray,
    bool,
    int,
    float,
    complex,
    type,
    Enum,
    nn.Module,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    torch.dtype,
    torch.device,
)
# What a copy of an object of the user's may fail with.
_COPY_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
    copy.Error,
)


def searched_tensors(output: Any) -> list[Tensor]:
    """Tensors from which DDP searches for unused parameters."""
    return list(torch_ddp._find_tensors(output))


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
    found: dict[int, Tensor] = {}
    for tensor in _walk(output, set(), 0):
        found.setdefault(id(tensor), tensor)
    return list(found.values())


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

        Containers that hold one of them are copied, as DDP does. One that
        cannot be copied is left as it is.
        """
        new = {
            id(old): tensor
            for old, tensor in zip(self.tensors, tensors, strict=True)
            if tensor is not old
        }
        return _Rebuild(new).of(self._output, 0)


def open_output(output: Any) -> OpenedOutput | None:
    """Open an output of which DDP does not open all; else None."""
    if not unopened_containers(output):
        return None
    return OpenedOutput(output)


class _Rebuild:
    """Copies of what holds tensors that are to be replaced."""

    def __init__(self, new: Mapping[int, Tensor]) -> None:
        self._new = new
        self._done: dict[int, tuple[Any, Any]] = {}

    def of(self, value: Any, depth: int) -> Any:
        """The value, or a copy of it if it holds such a tensor."""
        if isinstance(value, Tensor):
            return self._new.get(id(value), value)
        if isinstance(value, _CLOSED) or depth > _MAX_DEPTH:
            return value
        if id(value) not in self._done:
            # Until it is known: an object may hold itself.
            self._done[id(value)] = value, value
            try:
                result = self._copy(value, lambda v: self.of(v, depth + 1))
            except _COPY_ERRORS:
                result = value
            self._done[id(value)] = value, result
        return self._done[id(value)][1]

    def _copy(self, value: Any, new: Callable[[Any], Any]) -> Any:
        items = None
        if isinstance(value, types.MappingProxyType):
            inner = dict(value)
            result = self._copy(inner, new)
            return value if result is inner else types.MappingProxyType(result)
        if isinstance(value, dict):
            items = {key: new(item) for key, item in dict.items(value)}
            changed = any(items[k] is not v for k, v in dict.items(value))
        elif isinstance(value, list | tuple | set | frozenset | deque):
            items = [new(item) for item in value]
            changed = any(a is not b for a, b in zip(items, value))
        else:
            changed = False
        own = getattr(value, '__dict__', None)
        own = own if isinstance(own, dict) else {}
        attributes = {name: new(item) for name, item in own.items()}
        slots = {name: new(getattr(value, name)) for name in _slots(value)}
        changed |= any(attributes[n] is not v for n, v in own.items())
        changed |= any(v is not getattr(value, n) for n, v in slots.items())
        if not changed:
            return value
        result = _shell(value, items)
        if attributes:
            vars(result).update(attributes)
        for name, item in slots.items():
            object.__setattr__(result, name, item)
        return result


def _shell(value: Any, items: Any) -> Any:
    """An object of the same class with new items."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return kind(items)
    if isinstance(value, tuple):
        return tuple.__new__(kind, items)
    if isinstance(value, frozenset):
        return frozenset.__new__(kind, items)
    result = copy.copy(value)
    if isinstance(value, dict):
        for key, item in items.items():
            dict.__setitem__(result, key, item)
    elif isinstance(value, list):
        list.__setitem__(result, slice(None), items)
    elif isinstance(value, set | deque):
        result.clear()
        for item in items:
            (result.add if isinstance(value, set) else result.append)(item)
    return result
