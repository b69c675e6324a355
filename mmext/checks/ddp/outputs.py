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
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import distributed as torch_ddp
from torch.utils._pytree import tree_flatten, tree_unflatten

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
