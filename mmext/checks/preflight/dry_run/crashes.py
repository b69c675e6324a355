"""What a step that ended with an error shows when it is run once more.

Some errors name neither the cause nor its place: a tensor that is changed in
place before the backward needs it, tensors whose sizes do not fit, asserts
without words, and samples that were not packed. Of the first, PyTorch's
anomaly mode says which operation needed the tensor, and a log of all
operations which one changed it; of the second, hooks say which layers the
tensors came from.
"""

import linecache
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ....utils.contain import Contained, frames_of
from ...config import join_key
from ...ddp import all_tensors
from .facts import Cause
from .step import frames_of_caller, modules_of_error, place_of_frames

_IN_PLACE = 'modified by an inplace operation'
_SIZES = re.compile(
    r'shapes cannot be multiplied|to have \d+ channels, but got'
    r'|must match the size of tensor|Sizes of tensors must match'
    r'|Given normalized_shape|should contain \d+ elements'
    r'|invalid for input of size|Expected size for first two dimensions'
    r'|Expected number of channels'
)
_DIMENSION = re.compile(
    r'tensor a \((\d+)\) must match the size of tensor b \((\d+)\) at '
    r'non-singleton dimension (\d+)'
)
_NODE = re.compile(r'Error detected in (\w+?)Backward\d*')
_IN_STACK = re.compile(r'File "(.+)", line (\d+), in (\S+)')
_MAX_NAMED = 3
# Keys of a config that say how many numbers go into a part.
_NUMBERS = ('in_channels', 'in_index', 'embed_dims', 'channels')


def explain_crash(
    model: nn.Module,
    run_again: Callable[[], Any],
    error: Exception,
    cfg: Mapping[str, Any] | None,
) -> Cause | None:
    """What caused an error of a step; None if that is not known.

    ``run_again`` runs the step once more, and fails the same way. ``cfg`` is
    the config that the model was built of.
    """
    text = str(error)
    found: list[Cause | None] = []
    # What cannot be explained is reported as it is.
    with Contained(lambda other: found.append(None)):
        if _IN_PLACE in text:
            found.append(_in_place(model, run_again))
        elif _SIZES.search(text):
            found.append(_sizes(model, run_again, cfg or {}))
        elif isinstance(error, AssertionError) and not text:
            found.append(_bare_assert(model, error, cfg or {}))
        elif isinstance(error, KeyError) and error.args == ('inputs',):
            found.append(_not_packed(cfg or {}))
        elif 'element of the written-to tensor refers to a single' in text:
            found += [
                Cause(f'{name} is made of an expanded tensor', modules=(name,))
                for name, parameter in model.named_parameters()
                if 0 in parameter.stride()
            ]
        if found in ([], [None]):
            found = [_part(model, error, cfg or {})]
    return found[0] if found else None


def _bare_assert(
    model: nn.Module, error: AssertionError, cfg: Mapping[str, Any]
) -> Cause | None:
    """What an assert without words asks for, and the key it is about."""
    frame, line = frames_of(error)[-1]
    code = linecache.getline(frame.f_code.co_filename, line).strip()
    inside = modules_of_error(error, model)
    if not code.startswith('assert ') or not inside:
        return None
    key = _key_of(inside[-1], cfg)
    if key.rpartition('.')[2] not in code:
        key = _key_of(inside[-1], cfg, outputs=True)
    condition = code.removeprefix('assert ')
    return Cause(f'{condition} does not hold for {key}', keys=(key,))


def _part(
    model: nn.Module, error: Exception, cfg: Mapping[str, Any]
) -> Cause | None:
    """The part of the config that the module with the error is of."""
    inside = modules_of_error(error, model)
    key = _key_of(inside[-1], cfg, outputs=True) if inside else 'model'
    if key == 'model':
        return None
    return Cause(f'it is set in {key}', modules=tuple(inside), keys=(key,))


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
        keys=('train_dataloader.dataset.pipeline',),
    )


class _Operation(NamedTuple):
    """One that ran in the forward.

    Attributes:
        name: As PyTorch has it, ``'add_'``.
        place: ``file:line in function`` of the code that called it.
        module: Innermost one whose code was running; may be empty.
        tensors: Storages of all its tensors.
        writes: Storages of those that it changes.
    """

    name: str
    place: str
    module: str
    tensors: frozenset[int]
    writes: frozenset[int]

    def in_words(self) -> str:
        """Name, code and module."""
        inside = f' in {self.module}' if self.module else ''
        return f'{self.name} ({self.place}){inside}'


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
        storages = {
            id(tensor): tensor.untyped_storage()
            for tensor in all_tensors((args, kwargs, outputs))
        }
        self._kept += [*storages.values(), args, outputs]
        pointers = {key: each.data_ptr() for key, each in storages.items()}
        changed = [
            value
            for argument, value in zip(func._schema.arguments, args)
            if argument.alias_info is not None
            and argument.alias_info.is_write
            and isinstance(value, Tensor)
        ]
        frames = list(frames_of_caller())
        running = (
            self._names.get(id(frame.f_locals.get('self')), '')
            for frame, _ in reversed(frames)
        )
        self.operations.append(
            _Operation(
                func._schema.name.rpartition('::')[2],
                place_of_frames(frames),
                next(filter(None, running), ''),
                frozenset(pointers.values()),
                frozenset(pointers[id(value)] for value in changed),
            )
        )
        return outputs


def _in_place(model: nn.Module, run_again: Callable[[], Any]) -> Cause | None:
    """Which operation changed a tensor that another one needs."""
    log = _Log(model)
    with ExitStack() as stack:
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter('always')
        stack.enter_context(torch.autograd.detect_anomaly(check_nan=False))
        stack.enter_context(Contained(lambda error: None))
        stack.enter_context(log)
        run_again()
    text = next(
        (str(w.message) for w in caught if _NODE.search(str(w.message))), ''
    )
    node = _NODE.search(text)
    if node is None:
        return None
    files = [f'{match[1]}:{match[2]}' for match in _IN_STACK.finditer(text)]
    wanted = node[1].lower()
    found: dict[str, _Operation] = {}
    victim = None
    for index, operation in enumerate(log.operations):
        if operation.name.replace('_', '') != wanted.replace('_', ''):
            continue
        if not _is_at(operation.place, files):
            continue
        for later in log.operations[index + 1 :]:
            if later.writes & operation.tensors and later.place:
                found.setdefault(later.in_words(), later)
                victim = operation
    if victim is None:
        return Cause(f'the operation whose tensor was changed is {node[1]}')
    changes = ' or '.join(list(found)[:_MAX_NAMED])
    return Cause(
        f'the gradient of {victim.in_words()} needs a tensor that is changed '
        f'afterwards by {changes}',
        remedy='make a new tensor there instead of changing it: x = x + y '
        'for x += y, inplace=False for a layer',
        modules=tuple(
            dict.fromkeys(
                filter(
                    None,
                    (victim.module, *(each.module for each in found.values())),
                )
            )
        ),
    )


def _is_at(place: str, files: list[str]) -> bool:
    """Whether a shortened place is among whole ones."""
    short = place.partition(' in ')[0]
    return any(file.endswith(short) for file in files)


class _Sources:
    """Knows which layer a tensor came from."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(m): name for name, m in model.named_modules()}
        self._of_function: dict[Any, str] = {}
        self._of_storage: dict[int, str] = {}
        self._kept: list[Any] = []
        self.inputs: dict[str, list[Tensor]] = {}

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Notes what goes into and comes out of each module."""
        handles = []
        for module in model.modules():
            handles += [
                module.register_forward_pre_hook(self._enter),
                module.register_forward_hook(self._leave),
            ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        name = self._names[id(module)]
        self.inputs[name] = list(all_tensors(args))

    def _leave(self, module: nn.Module, args: Any, outputs: Any) -> None:
        name = self._names[id(module)]
        for tensor in all_tensors(outputs):
            self._kept.append(tensor)
            # Of a module in others, the innermost ends first.
            if tensor.grad_fn is not None:
                self._of_function.setdefault(tensor.grad_fn, name)
            pointer = tensor.untyped_storage().data_ptr()
            self._of_storage.setdefault(pointer, name)

    def of(self, tensor: Tensor) -> str:
        """The last layer before a tensor; empty if there is none."""
        seen, todo = set(), [tensor.grad_fn]
        while todo:
            function = todo.pop(0)
            if function in self._of_function:
                return self._of_function[function]
            if function is None or function in seen:
                continue
            seen.add(function)
            todo += [after for after, _ in function.next_functions]
        pointer = tensor.untyped_storage().data_ptr()
        return self._of_storage.get(pointer, '')


def _sizes(
    model: nn.Module, run_again: Callable[[], Any], cfg: Mapping[str, Any]
) -> Cause | None:
    """Between which layers sizes do not fit."""
    sources = _Sources(model)
    errors: list[Exception] = []
    with sources.watching(model), Contained(errors.append):
        run_again()
    if not errors:
        return None
    inside = modules_of_error(errors[0], model)
    if not inside:
        return None
    last = inside[-1]
    layer = model.get_submodule(last)
    if type(layer).__module__.startswith('torch.'):
        tensors = {'': sources.inputs.get(last, [])}
    else:
        tensors = _locals_that_differ(errors[0], layer)
    given, keys, modules = [], [_key_of(last, cfg)], [last]
    for name, values in tensors.items():
        for tensor in values[:_MAX_NAMED]:
            source = sources.of(tensor)
            key = _key_of(source, cfg, outputs=True) if source else ''
            given.append(
                f'{name} {tuple(tensor.shape)} of '.lstrip()
                + (_named(source, model, key) if source else 'the batch')
            )
            keys += filter(None, [key])
            modules += filter(None, [source])
    if not given:
        return None
    return Cause(
        f'{_named(last, model, keys[0])} gets {" and ".join(given)}',
        modules=tuple(dict.fromkeys(modules)),
        keys=tuple(dict.fromkeys(keys)),
    )


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


def _locals_that_differ(
    error: Exception, layer: nn.Module
) -> dict[str, list[Tensor]]:
    """Variables in the line that failed that have the sizes of its message."""
    match = _DIMENSION.search(str(error))
    found: dict[str, list[Tensor]] = {}
    for frame, line in frames_of(error):
        if frame.f_locals.get('self') is not layer:
            continue
        code = linecache.getline(frame.f_code.co_filename, line)
        words = set(re.findall(r'\w+', code))
        found = {
            name: [value]
            for name, value in frame.f_locals.items()
            if isinstance(value, Tensor)
            and name in words
            and (match is None or _has_size(value, match))
        }
    return found


def _has_size(tensor: Tensor, match: re.Match) -> bool:
    """Whether a tensor is one of the two that a message is about."""
    dimension = int(match[3])
    return tensor.dim() > dimension and tensor.shape[dimension] in (
        int(match[1]),
        int(match[2]),
    )


def _key_of(
    name: str, cfg: Mapping[str, Any], *, outputs: bool = False
) -> str:
    """Key of the part of a config that a module was built of."""
    path: list[str | int] = ['model']
    value: Any = cfg.get('model') or {}
    for step in name.split('.'):
        if isinstance(value, Mapping) and step in value:
            path.append(step)
            value = value[step]
        elif isinstance(value, list | tuple) and step.isdecimal():
            path.append(int(step))
            value = value[int(step)]
        else:
            break
    if isinstance(value, Mapping) and not outputs:
        path += [key for key in _NUMBERS if key in value][:1]
    return join_key(path)
