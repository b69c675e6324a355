"""Find where the code of a class calls PyTorch's activation checkpointing.

Read from the source, without running it. Functions that a method calls in
turn are not followed.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import checkpoint as torch_checkpoint

__all__ = ['CheckpointCall', 'checkpoint_calls']

_TARGETS = (
    torch_checkpoint.checkpoint,
    torch_checkpoint.checkpoint_sequential,
)
_NAMES = {target.__name__ for target in _TARGETS}
_MODULES = {
    'torch.utils.checkpoint': torch_checkpoint,
    'torch.utils': torch.utils,
}


class CheckpointCall(NamedTuple):
    """A call of ``torch.utils.checkpoint`` in the code of a class.

    Attributes:
        non_reentrant: ``use_reentrant=False`` is written there.
        part: Attribute of ``self`` that is run under the checkpoint, None
            where it is anything else, such as a function inside the method.
        items: The part is a container, and its items are what runs.
    """

    non_reentrant: bool
    part: str | None
    items: bool


def _names(code: CodeType) -> set[str]:
    """Names that code reads, functions in it included."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _resolve(node: ast.expr, scope: dict[str, Any]) -> Any:
    """What a dotted name stands for in a module, None if unknown."""
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_resolve(node.value, scope), node.attr, None)
    return None


def _self_attribute(node: ast.expr) -> str | None:
    """``name`` of ``self.name``."""
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == 'self'
    ):
        return node.attr
    return None


def _looped(tree: ast.AST) -> dict[str, str]:
    """Loop variable -> the attribute of ``self`` that it goes through."""
    found: dict[str, str] = {}
    for loop in ast.walk(tree):
        if not isinstance(loop, ast.For):
            continue
        source = loop.iter
        if isinstance(source, ast.Call) and source.args:  # enumerate(...)
            source = source.args[0]
        attribute = _self_attribute(source)
        if attribute is not None:
            for node in ast.walk(loop.target):
                if isinstance(node, ast.Name):
                    found[node.id] = attribute
    return found


def _part(node: ast.expr, looped: dict[str, str]) -> tuple[str | None, bool]:
    """Attribute that is run, and whether its items are."""
    if isinstance(node, ast.Name):
        return looped.get(node.id), node.id in looped
    if isinstance(node, ast.Subscript):
        return _self_attribute(node.value), True
    return _self_attribute(node), False


def _imported(tree: ast.AST) -> dict[str, Any]:
    """Names that a function imports from PyTorch itself, with the values."""
    return {
        alias.asname or alias.name: getattr(source, alias.name, None)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for source in [_MODULES.get(node.module or '')]
        for alias in node.names
    }


def _is_target(value: Any) -> bool:
    return any(value is target for target in _TARGETS)


def _calls_of(function: FunctionType) -> Iterator[CheckpointCall]:
    """Calls in one function; one of nothing known if it has no source."""
    scope = function.__globals__
    names = _names(function.__code__)
    if not names & _NAMES and not any(_is_target(scope.get(n)) for n in names):
        return
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        yield CheckpointCall(False, None, False)
        return
    scope = {**scope, **_imported(tree)}
    looped = _looped(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_target(
            _resolve(node.func, scope)
        ):
            yield _describe(node, looped)


def _describe(node: ast.Call, looped: dict[str, str]) -> CheckpointCall:
    """What a call says."""
    named = {each.arg: each.value for each in node.keywords}
    flag = named.get('use_reentrant')
    ran = node.args[0] if node.args else named.get('function')
    part = (None, False) if ran is None else _part(ran, looped)
    return CheckpointCall(
        isinstance(flag, ast.Constant) and flag.value is False, *part
    )


@cache
def checkpoint_calls(kind: type) -> tuple[CheckpointCall, ...]:
    """Calls in the methods of a class and of its bases.

    Args:
        kind: Class of a module.

    Returns:
        All calls of ``torch.utils.checkpoint.checkpoint`` and
        ``checkpoint_sequential``, under whatever name they were imported.

    Examples:
        >>> from mmdet.models.necks import HRFPN
        >>> for call in checkpoint_calls(HRFPN):
        ...     print(call.part, call.items, call.non_reentrant)
        reduction_conv False False
        fpn_convs True False
    """
    functions = [
        inspect.unwrap(value)
        for base in kind.__mro__
        if base not in nn.Module.__mro__
        for value in vars(base).values()
        if isinstance(value, FunctionType)
    ]
    return tuple(call for each in functions for call in _calls_of(each))
