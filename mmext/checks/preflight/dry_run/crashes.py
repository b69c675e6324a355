"""What a step that ended with an error shows when it is run once more.

Some errors name neither the cause nor its location: a tensor that is changed
in place before the backward needs it, tensors whose sizes do not fit, asserts
without words, and samples that were not packed. Of the first, PyTorch's
anomaly mode says which operation needed the tensor, and a log of all
operations which one changed it; of the second, hooks say which layers the
tensors came from.
"""

import linecache
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from ...config import join_key
from ...ddp import all_tensors, location_in, running_frames
from ...findings import ErrorCatcher, frames_of
from ..causes import Setting
from ..sandbox import part_at

_IN_PLACE = 'modified by an inplace operation'
_SIZES = re.compile(
    r'shapes cannot be multiplied|to have \d+ channels, but got'
    r'|must match the size of tensor|Sizes of tensors must match'
    r'|Given normalized_shape|should contain \d+ elements'
    r'|invalid for input of size|Expected size for first two dimensions'
    r'|Expected number of channels'
)
_NODE = re.compile(r'Error detected in (\w+?)Backward\d*')
_IN_STACK = re.compile(r'File "(.+)", line (\d+), in (\S+)')
_MAX_NAMED = 3
# Keys of a config that say how many numbers go into a part.
_NUMBERS = ('in_channels', 'in_index', 'embed_dims', 'channels')


@dataclass(frozen=True)
class Cause:
    """What is certain of the cause of an error."""

    text: str
    # Empty if it is not certain.
    remedy: str = ''
    modules: tuple[str, ...] = ()
    # Of the config, that made the first of these modules.
    key: str = ''
    # Whether it is more than the code that failed.
    certain: bool = True


@dataclass(frozen=True)
class Crash:
    """A step that ended with an exception."""

    # Of the batch.
    kind: str
    # From 0.
    step: int
    # 'change to the training mode', 'data_preprocessor', 'forward',
    # 'backward' or 'optimizer'.
    phase: str
    # Class of the exception, and its text.
    error: str
    message: str
    # That it went through, the outermost first.
    modules: tuple[str, ...] = ()
    # ``file:line in function`` of the innermost code that is not PyTorch's.
    location: str = ''
    # What another run of the step has shown.
    cause: Cause | None = None
    # That may be the cause, with other values.
    settings: tuple[Setting, ...] = ()


def explain_crash(
    model: nn.Module,
    run_again: Callable[[], Any],
    error: Exception,
    cfg: Mapping[str, Any],
) -> Cause | None:
    """What caused an error of a step; None if that is not known.

    ``run_again`` runs the step once more, and fails the same way. ``cfg`` is
    the config that the model was built of.
    """
    text, cause = str(error), None
    inside = modules_of_error(error, model)
    # What cannot be explained is reported as it is.
    with ErrorCatcher(lambda other: None):
        if _IN_PLACE in text:
            cause = _in_place(model, run_again)
        elif _SIZES.search(text):
            cause = _sizes(model, run_again, cfg)
        elif isinstance(error, AssertionError) and not text:
            cause = _bare_assert(error, inside, cfg)
        elif isinstance(error, KeyError) and error.args == ('inputs',):
            cause = _not_packed(cfg)
        elif 'element of the written-to tensor refers to a single' in text:
            for name, parameter in model.named_parameters():
                if cause is None and 0 in parameter.stride():
                    text = f'{name} is made of an expanded tensor'
                    cause = Cause(text, modules=(name,))
        if cause is None and inside:
            key = _key_of(inside[-1], cfg, outputs=True)
            # The whole model says no more than the error.
            if key != 'model':
                text = f'it is set in {key}'
                cause = Cause(text, modules=inside, key=key, certain=False)
    return cause


def modules_of_error(
    error: BaseException, model: nn.Module
) -> tuple[str, ...]:
    """Names of the modules whose code was running, the outermost first."""
    names = {id(module): name for name, module in model.named_modules()}
    running = {}
    for frame, _ in frames_of(error):
        name = names.get(id(frame.f_locals.get('self')), '')
        if name:
            running[name] = None
    return tuple(running)


def _bare_assert(
    error: AssertionError, inside: Sequence[str], cfg: Mapping[str, Any]
) -> Cause | None:
    """What an assert without words asks for, and the key it is about."""
    frame, line = frames_of(error)[-1]
    code = linecache.getline(frame.f_code.co_filename, line).strip()
    if not code.startswith('assert ') or not inside:
        return None
    key = _key_of(inside[-1], cfg)
    if key.rpartition('.')[2] not in code:
        key = _key_of(inside[-1], cfg, outputs=True)
    condition = code.removeprefix('assert ')
    return Cause(f'{condition} does not hold for {key}', key=key)


def _not_packed(cfg: Mapping[str, Any]) -> Cause | None:
    """That no step of the training pipeline packs, if it is so."""
    dataset = (cfg.get('train_dataloader') or {}).get('dataset') or {}
    steps = dataset.get('pipeline')
    if not isinstance(steps, list) or 'Pack' in str(steps):
        return None
    return Cause(
        'no step of train_dataloader.dataset.pipeline packs the sample',
        remedy='end the pipeline with PackDetInputs, PackSegInputs or '
        'PackInputs, which is of the same host as the model',
        key='train_dataloader.dataset.pipeline',
    )


class _Operation(NamedTuple):
    """One that ran in the forward, by its name, such as ``'add_'``.

    ``location`` is the line of code that called it, ``module`` the innermost
    one; ``tensors`` and ``writes`` the storages it uses and changes.
    """

    name: str
    location: str
    module: str
    tensors: frozenset[int]
    writes: frozenset[int]

    def in_words(self) -> str:
        """Name, code and module."""
        inside = f' in {self.module}' if self.module else ''
        return f'{self.name} ({self.location}){inside}'


class _Log(TorchDispatchMode):
    """Notes all operations, and keeps their tensors, so that none is freed."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.operations: list[_Operation] = []
        self._names = {id(m): name for name, m in model.named_modules()}
        self._kept: list[Any] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        """Run an operation and note it."""
        outputs = func(*args, **(kwargs or {}))
        tensors = all_tensors((args, kwargs, outputs))
        self._kept += [*tensors, args, outputs]
        changed = [
            value
            for argument, value in zip(func._schema.arguments, args)
            if argument.alias_info is not None
            and argument.alias_info.is_write
            and isinstance(value, Tensor)
        ]
        frames = running_frames()
        running = (
            self._names.get(id(frame.f_locals.get('self')), '')
            for frame, _ in reversed(frames)
        )
        self.operations.append(
            _Operation(
                func._schema.name.rpartition('::')[2],
                location_in(frames),
                next(filter(None, running), ''),
                frozenset(_storage(tensor) for tensor in tensors),
                frozenset(_storage(tensor) for tensor in changed),
            )
        )
        return outputs


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _in_place(model: nn.Module, run_again: Callable[[], Any]) -> Cause | None:
    """Which operation changed a tensor that another one needs."""
    log = _Log(model)
    with ExitStack() as stack:
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter('always')
        stack.enter_context(torch.autograd.detect_anomaly(check_nan=False))
        stack.enter_context(ErrorCatcher(lambda error: None))
        stack.enter_context(log)
        run_again()
    texts = [str(w.message) for w in caught if _NODE.search(str(w.message))]
    if not texts:
        return None
    node = _NODE.search(texts[0])[1]
    files = [f'{m[1]}:{m[2]}' for m in _IN_STACK.finditer(texts[0])]
    operations: dict[str, _Operation] = {}
    victim = None
    for index, operation in enumerate(log.operations):
        short = operation.location.partition(' in ')[0]
        if (
            operation.name.replace('_', '') != node.lower().replace('_', '')
            # The location is shortened, those of the stack are not.
            or not any(file.endswith(short) for file in files)
        ):
            continue
        for later in log.operations[index + 1 :]:
            if later.writes & operation.tensors and later.location:
                operations.setdefault(later.in_words(), later)
                victim = operation
    if victim is None:
        return Cause(f'the operation whose tensor was changed is {node}')
    modules = (victim.module, *(later.module for later in operations.values()))
    return Cause(
        f'the gradient of {victim.in_words()} needs a tensor that is changed '
        f'afterwards by {" or ".join(list(operations)[:_MAX_NAMED])}',
        remedy='make a new tensor there instead of changing it: x = x + y '
        'for x += y, inplace=False for a layer',
        modules=tuple(dict.fromkeys(filter(None, modules))),
    )


def _sizes(
    model: nn.Module, run_again: Callable[[], Any], cfg: Mapping[str, Any]
) -> Cause | None:
    """From which layer comes what does not fit into a layer of PyTorch's."""
    names = {id(m): name for name, m in model.named_modules()}
    made_by: dict[Any, str] = {}
    inputs: dict[str, list[Tensor]] = {}
    kept: list[Any] = []

    def enter(module: nn.Module, args: Any) -> None:
        inputs[names.get(id(module), '')] = all_tensors(args)

    def leave(module: nn.Module, args: Any, outputs: Any) -> None:
        for tensor in all_tensors(outputs):
            kept.append(tensor)
            # Of a module in others, the innermost ends first.
            made_by.setdefault(
                tensor.grad_fn or _storage(tensor), names.get(id(module), '')
            )

    errors: list[Exception] = []
    with ExitStack() as stack:
        stack.callback(register_module_forward_pre_hook(enter).remove)
        stack.callback(register_module_forward_hook(leave).remove)
        stack.enter_context(ErrorCatcher(errors.append))
        run_again()
    # What it holds, the tensors of a step, is freed with it.
    inside = modules_of_error(errors.pop(), model) if errors else ()
    if not inside or not inputs.get(inside[-1]):
        return None
    last = inside[-1]
    if not type(model.get_submodule(last)).__module__.startswith('torch.'):
        return None
    given, key, modules = [], _key_of(last, cfg), [last]
    for tensor in inputs[last][:_MAX_NAMED]:
        source = _source_of(tensor, made_by)
        text = 'the batch'
        if source:
            modules.append(source)
            made = _key_of(source, cfg, outputs=True)
            text = _named(source, model, made)
        given.append(f'{tuple(tensor.shape)} of {text}')
    return Cause(
        f'{_named(last, model, key)} gets {" and ".join(given)}',
        modules=tuple(dict.fromkeys(modules)),
        key=key,
    )


def _source_of(tensor: Tensor, made_by: Mapping[Any, str]) -> str:
    """The last layer before a tensor; empty if there is none."""
    seen, todo = set(), [tensor.grad_fn]
    while todo:
        function = todo.pop(0)
        if function in made_by:
            return made_by[function]
        if function is None or function in seen:
            continue
        seen.add(function)
        todo += [after for after, _ in function.next_functions]
    return made_by.get(_storage(tensor), '')


def _named(name: str, model: nn.Module, key: str) -> str:
    """A layer with what it is made for, and the key that sets it."""
    layer = model.get_submodule(name)
    kind = type(layer).__name__
    for first, second in (
        ('in_channels', 'out_channels'),
        ('in_features', 'out_features'),
    ):
        if isinstance(getattr(layer, first, None), int) and hasattr(
            layer, second
        ):
            kind += f' {getattr(layer, first)} -> {getattr(layer, second)}'
    where = f'; {key}' if key not in ('', 'model') else ''
    return f'{name} ({kind}{where})'


def _key_of(
    name: str, cfg: Mapping[str, Any], *, outputs: bool = False
) -> str:
    """Key of the part of a config that a module was built of."""
    top, path = {'model': cfg.get('model')}, ['model']
    value = top['model']
    for step in name.split('.'):
        path.append(int(step) if step.isdecimal() else step)
        inner = part_at(top, path)
        if inner is None:
            path.pop()
            break
        value = inner
    if isinstance(value, Mapping) and not outputs:
        path += [key for key in _NUMBERS if key in value][:1]
    return join_key(path)
