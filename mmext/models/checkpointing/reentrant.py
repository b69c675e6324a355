"""Replace the reentrant activation checkpoints of a model by ours.

A reentrant checkpoint is one opaque node in the graph: with
``find_unused_parameters=True`` its parameters count as unused and are marked
ready twice, keyword arguments are refused, and behind a frozen stem it gives
no gradients. All the ways in which the hosts checkpoint are reentrant.
"""

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
from mmengine.runner.activation_checkpointing import wrap_forward
from torch import nn
from torch.utils import checkpoint as torch_checkpoint

from .checkpoint import checkpoint_module, is_checkpointed

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
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


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
    attributes: dict[str, str] = {}
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
                    attributes[node.id] = attribute
    return attributes


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
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    flag = named.get('use_reentrant')
    ran = node.args[0] if node.args else named.get('function')
    part = (None, False) if ran is None else _part(ran, looped)
    return CheckpointCall(
        isinstance(flag, ast.Constant) and flag.value is False, *part
    )


@cache
def checkpoint_calls(kind: type) -> tuple[CheckpointCall, ...]:
    """Calls in the methods of a class and of its bases."""
    functions = [
        inspect.unwrap(value)
        for base in kind.__mro__
        if base not in nn.Module.__mro__
        for value in vars(base).values()
        if isinstance(value, FunctionType)
    ]
    return tuple(
        call for function in functions for call in _calls_of(function)
    )


FLAGS = ('with_cp', 'use_checkpoint')
_FAIRSCALE = 'fairscale.'
# The code that all of MMEngine's wrappers share.
_WRAPPER = wrap_forward(lambda: None).__code__


def _is_fairscale(forward: Any) -> bool:
    return (
        isinstance(forward, functools.partial)
        and (getattr(forward.func, '__module__', '') or '').startswith(
            _FAIRSCALE
        )
        and len(forward.args) == 3
    )


def _is_mmengine(forward: Any) -> bool:
    return getattr(forward, '__code__', None) is _WRAPPER


def _unwrap(module: nn.Module, name: str) -> Callable[..., Any] | None:
    """The instance's forward below all wrappers, None for its class's."""
    forward = module.__dict__.get('forward')
    while _is_fairscale(forward) or _is_mmengine(forward):
        if _is_mmengine(forward):
            forward = forward.__wrapped__
            continue
        plain, _, offload = forward.args
        if offload:
            raise ValueError(
                f'{name} must be wrapped without offload_to_cpu to be '
                'replaced, got fairscale.nn.checkpoint.checkpoint_wrapper('
                '..., offload_to_cpu=True); leave that out, or set '
                'replace_reentrant=False'
            )
        # The wrapper of a copied module holds the module that was copied.
        forward = None if plain is type(module).forward else plain
        if forward is not None:
            forward = types.MethodType(plain, module)
    bound = isinstance(forward, types.MethodType)
    if bound and forward.__func__ is type(module).forward:
        return None
    return forward


def _drop_fairscale_hooks(module: nn.Module) -> None:
    """Remove the hooks that kept statistics off in fairscale's first run."""
    for inner in module.modules():
        for hooks in (inner._forward_pre_hooks, inner._forward_hooks):
            for key, hook in list(hooks.items()):
                if getattr(hook, '__module__', '').startswith(_FAIRSCALE):
                    del hooks[key]


def _reentrant_calls(module: nn.Module) -> list[CheckpointCall]:
    return [
        call
        for call in checkpoint_calls(type(module))
        if not call.non_reentrant
    ]


def _parts(module: nn.Module, calls: list[CheckpointCall]) -> list[nn.Module]:
    """What the calls run; the whole module if that is unclear."""
    called: list[nn.Module] = []
    for call in calls:
        part = getattr(module, call.part, None) if call.part else None
        if not isinstance(part, nn.Module):
            return [module]
        called += part.children() if call.items else [part]
    return called


def replace_reentrant_checkpoints(model: nn.Module) -> list[str]:
    """Make the checkpoints of a model non-reentrant, in place.

    It replaces the checkpoints of

    * modules whose ``with_cp`` or ``use_checkpoint`` is on and whose code
      calls ``torch.utils.checkpoint``: the blocks of backbones and some necks
      of mmcv, mmdet and mmseg, and user modules written in the same way. The
      flag is set to False, and what ran under the checkpoint is checkpointed:
      a part such as ``self.convs``, or else the whole block;
    * modules wrapped by fairscale's ``checkpoint_wrapper``, as ``num_cp`` of
      mmdet's transformers does;
    * modules wrapped by MMEngine's ``turn_on_activation_checkpointing``.

    The flag of a parent that only passes it on to blocks is not changed.
    Non-reentrant checkpoints stay, and nested checkpoints stay nested. A call
    that no flag of the module turns off cannot be replaced: see
    :func:`unreplaced_checkpoints`.

    Note:
        Losses and gradients stay the same. Running statistics of BatchNorm
        become those of a run without checkpoints, see
        :func:`~.checkpoint.held_statistics`. A block behind a frozen stem,
        which the hosts run without a checkpoint, is checkpointed, too.
    """
    names = {module: name for name, module in model.named_modules()}
    before = {module for module in names if is_checkpointed(module)}
    for module, name in names.items():
        forward = module.__dict__.get('forward')
        if _is_fairscale(forward) or _is_mmengine(forward):
            own = _unwrap(module, name)
            del module.__dict__['forward']
            if own is not None:
                module.__dict__['forward'] = own
            if _is_fairscale(forward):
                _drop_fairscale_hooks(module)
            checkpoint_module(module)
    for module in names:
        flags = [flag for flag in FLAGS if getattr(module, flag, False)]
        calls = _reentrant_calls(module) if flags else []
        if not calls:
            continue
        for flag in flags:
            setattr(module, flag, False)
        for part in _parts(module, calls):
            checkpoint_module(part)
    return [
        name
        for module, name in names.items()
        if is_checkpointed(module) and module not in before
    ]


def unreplaced_checkpoints(model: nn.Module) -> list[str]:
    """Modules whose own code may run a reentrant checkpoint.

    They are recognised by the code of their classes: a call of
    ``torch.utils.checkpoint`` without ``use_reentrant=False``, and no
    ``with_cp`` or ``use_checkpoint`` that is off. Calls in other functions,
    as in the modules of ``transformers``, are not recognised.
    """
    return [
        name
        for name, module in model.named_modules()
        if _reentrant_calls(module)
        and (
            any(getattr(module, flag, False) for flag in FLAGS)
            or not any(hasattr(module, flag) for flag in FLAGS)
        )
    ]
