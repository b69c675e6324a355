"""Follow the values of parameters through a forward, and name the code.

Autograd's graph holds the parameters that reach the loss, and nothing about
those that do not. Here each call of a torch function is recorded: what went
in, what came out, whether gradients were on, and which line of whose code
was running.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import dropwhile
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.weak import WeakIdKeyDictionary

from .graph import all_tensors

_TORCH = os.path.dirname(torch.__file__) + os.sep
_CHECKS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Code that watches the step, and is no part of it.
_WATCHERS = tuple(
    os.path.join(_CHECKS, name, '') for name in ('ddp', 'device', 'preflight')
)
# Functions of this name in these files run a part under no_grad, to run it
# again in a nested backward.
_REENTRANT = ('forward', 'backward')
_CHECKPOINT_FILES = (
    os.path.join('torch', 'utils', 'checkpoint.py'),
    os.path.join('fairscale', 'nn', 'checkpoint', 'checkpoint_activations.py'),
)


def code_location(
    *, within_checkpoint: bool = False, within_backward: bool = False
) -> str:
    """``file:line in function`` of the model's code that is running.

    Empty if there is none; ``within_checkpoint`` and ``within_backward`` look
    no further out than the checkpoint or the backward that is running.
    """
    for frame in _running():
        if within_checkpoint and _is_checkpoint(frame):
            break
        if within_backward and frame.f_code.co_name == '_engine_run_backward':
            break
        if not _is_ours(frame):
            return _location_of(frame, frame.f_lineno)
    return ''


def location_in(frames: Sequence[tuple[FrameType, int]]) -> str:
    """The same of frames with their lines, the innermost last."""
    for frame, line in reversed(frames):
        if not _is_ours(frame):
            return _location_of(frame, line)
    return ''


def running_frames() -> list[tuple[FrameType, int]]:
    """Frames that are running, with their lines, the innermost last."""
    return [(frame, frame.f_lineno) for frame in _running()][::-1]


def checkpoint_call_site() -> str:
    """Where the innermost reentrant checkpoint was called, or empty."""
    outside = dropwhile(lambda f: not _is_checkpoint(f, 'forward'), _running())
    return location_in([(f, f.f_lineno) for f in outside][::-1])


def reentrant_backward() -> int | None:
    """A number of the reentrant checkpoint whose backward runs, or None."""
    running = (id(f) for f in _running() if _is_checkpoint(f, 'backward'))
    return next(running, None)


def _running() -> Iterator[FrameType]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _location_of(frame: FrameType, line: int) -> str:
    """``file:line in function``, with the two innermost folders."""
    name = os.path.join(*frame.f_code.co_filename.split(os.sep)[-3:])
    return f'{name}:{line} in {frame.f_code.co_name}'


def _is_checkpoint(frame: FrameType, *names: str) -> bool:
    code = frame.f_code
    return code.co_name in (names or _REENTRANT) and (
        code.co_filename.endswith(_CHECKPOINT_FILES)
    )


def _is_ours(frame: FrameType) -> bool:
    """Whether it is PyTorch's, this package's, or made at run time."""
    return frame.f_code.co_filename.startswith((_TORCH, *_WATCHERS, '<'))


class Cut(NamedTuple):
    """Where values go on and gradients do not.

    ``cause`` is ``'no_grad'``, ``'checkpoint'`` (a reentrant one runs its part
    under no_grad) or ``'function'``; ``location`` module and line of code.
    """

    cause: str
    function: str
    location: str


@dataclass
class _Origins:
    """Parameters that a tensor depends on, one bit for each.

    With a gradient (``live``), and for each cut those that it cut off.
    """

    live: int = 0
    cut: dict[Cut, int] = field(default_factory=dict)

    def add(self, other: '_Origins') -> None:
        self.live |= other.live
        for cut, bits in other.cut.items():
            self.cut[cut] = self.cut.get(cut, 0) | bits


class ValueFlow(TorchFunctionMode):
    """Context around a forward that records what becomes of parameters.

    They are identified by their index in ``names``.

    Functions that are implemented outside of Python are taken as a whole:
    where a module returns tensors of unknown origin, they are taken to come
    from all that went into the module.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        parameters = dict(model.named_parameters())
        self._bits = {id(parameters[name]): i for i, name in enumerate(names)}
        self._model = model
        self._origins = WeakIdKeyDictionary()
        self._modules: list[tuple[str, _Origins]] = []
        self._exits = ExitStack()
        self._checkpoints: list[bool] = []
        self._used = 0
        self.no_grad_cuts: dict[int, Cut] = {}
        self.call_sites: dict[int, str] = {}
        self.module_calls: dict[str, int] = {}

    def __enter__(self) -> 'ValueFlow':
        """Begin to record."""
        self._checkpoints = self._exits.enter_context(
            reentrant_calls(self._leave_checkpoint)
        )
        self._exits.enter_context(
            watched_calls(self._model, self._enter_module, self._leave_module)
        )
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        """End, and leave the model as it was."""
        self._exits.close()
        super().__exit__(*error)

    def is_used(self, index: int) -> bool:
        """Whether a parameter was an input while gradients were on."""
        return bool(self._used >> index & 1)

    def cut_before(self, tensors: Iterable[Tensor]) -> dict[int, Cut]:
        """The first cut on the way of each parameter to some tensors."""
        total = _Origins()
        for tensor in tensors:
            total.add(self._origins_of(tensor))
        return {
            index: cut
            for cut, bits in reversed(total.cut.items())
            for index in _indices(bits)
        }

    def _enter_module(
        self, name: str, module: nn.Module, args: tuple, kwargs: dict
    ) -> None:
        self.module_calls[name] = self.module_calls.get(name, 0) + 1
        inputs, known = _Origins(), (args, kwargs)
        self._modules.append((name, inputs))
        if isinstance(module, torch.jit.ScriptModule):
            # Its code is not seen: assume that it uses all its parameters.
            known = (args, kwargs, list(module.parameters()))
        for tensor in all_tensors(known):
            inputs.add(self._origins_of(tensor))

    def _leave_module(
        self, module: nn.Module, args: tuple, output: Any
    ) -> None:
        _, known = self._modules.pop()
        for tensor in all_tensors(output):
            if tensor not in self._origins and id(tensor) not in self._bits:
                self._record(tensor, known, type(module).__name__)
        if self._modules:
            # What a module uses counts as used by the one that calls it.
            self._modules[-1][1].add(known)

    def _leave_checkpoint(self, result: Any) -> None:
        """What needs a gradient after a checkpoint was not cut off by it."""
        for tensor in all_tensors(result):
            origins = self._origins.get(tensor)
            if origins is None or not tensor.requires_grad:
                continue
            for cut in [c for c in origins.cut if c.cause == 'checkpoint']:
                origins.live |= origins.cut.pop(cut)

    def _origins_of(self, tensor: Tensor) -> _Origins:
        index = self._bits.get(id(tensor))
        if index is not None:
            return _Origins(1 << index)
        return self._origins.get(tensor, _Origins())

    def _cut(self, function: str) -> Cut:
        cause = 'function'
        if not torch.is_grad_enabled():
            inside = self._checkpoints[:1] == [True]
            cause = 'checkpoint' if inside else 'no_grad'
        module = self._modules[-1][0] if self._modules else ''
        location = code_location()
        if module:
            location = f'{module}, {location}'
        return Cut(cause, function, location)

    def _record(self, tensor: Tensor, inputs: _Origins, function: str) -> None:
        """Record what a result was computed from."""
        origins = _Origins()
        origins.add(inputs)
        if origins.live and not tensor.requires_grad:
            cut = self._cut(function)
            origins.cut[cut] = origins.cut.get(cut, 0) | origins.live
            origins.live = 0
        if origins.live or origins.cut:
            self._origins[tensor] = origins

    def __torch_function__(
        self,
        func: Callable,
        types: Any,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        """Run a torch function and record what it did."""
        result = func(*args, **(kwargs or {}))
        name = _name_of(func)
        if name is None:
            return result
        inputs, direct = _Origins(), 0
        for tensor in all_tensors((args, kwargs)):
            origins = self._origins_of(tensor)
            inputs.add(origins)
            if id(tensor) in self._bits:
                direct |= origins.live
        if not (inputs.live or inputs.cut):
            return result
        if direct:
            self._record_use(direct, name)
        if self._modules:
            self._modules[-1][1].add(inputs)
        # An assignment returns None, and changes its first argument.
        outputs = args[:1] if name == '__setitem__' else result
        for tensor in all_tensors(outputs):
            if id(tensor) not in self._bits:
                self._record(tensor, inputs, name)
        return result

    def _record_use(self, bits: int, function: str) -> None:
        if torch.is_grad_enabled():
            self._used |= bits
            return
        new = [i for i in _indices(bits) if i not in self.no_grad_cuts]
        if not new:
            return
        cut = self._cut(function)
        self.no_grad_cuts.update(dict.fromkeys(new, cut))
        if cut.cause == 'checkpoint':
            site = checkpoint_call_site()
            self.call_sites.update(dict.fromkeys(new, site))


@contextmanager
def watched_calls(
    model: nn.Module, enter: Callable, leave: Callable
) -> Iterator[None]:
    """Call functions around the forward of each module of a model.

    Both are hooks of PyTorch: ``enter`` gets the name of the module first, and
    keyword arguments last; ``leave`` is also called after an error.
    """
    with ExitStack() as exits:
        for name, module in model.named_modules():
            # Methods of TorchScript modules refuse hooks, calls run them.
            before = nn.Module.register_forward_pre_hook(
                module, partial(enter, name), with_kwargs=True
            )
            exits.callback(before.remove)
            after = nn.Module.register_forward_hook(
                module, leave, always_call=True
            )
            exits.callback(after.remove)
        yield


def _indices(bits: int) -> list[int]:
    """Positions of the bits that are set."""
    return [i for i in range(bits.bit_length()) if bits >> i & 1]


# Functions that answer a question about a tensor and compute nothing with it.
_QUESTIONS = frozenset(
    (
        *('size', 'dim', 'stride', 'numel', 'nelement', 'element_size'),
        *('storage_offset', 'data_ptr', 'is_contiguous', 'get_device'),
        *('is_floating_point', 'is_complex', '__len__', '__hash__'),
        *('__repr__', '__format__', 'requires_grad_', 'retain_grad'),
        *('register_hook', 'register_post_accumulate_grad_hook'),
        *('untyped_storage', '__set__', '__delete__'),
    )
)


def _name_of(func: Callable) -> str | None:
    """Name of a torch function, None for one that computes nothing."""
    name = getattr(func, '__name__', '')
    if name == '__get__':
        # A property; the name is that of what it belongs to.
        name = getattr(getattr(func, '__self__', None), '__name__', '')
        return name if name in ('data', 'T', 'mT', 'H', 'real') else None
    return None if name in _QUESTIONS else name or 'function'


_FAIRSCALE = 'fairscale.nn.checkpoint.checkpoint_activations'


@contextmanager
def reentrant_calls(
    done: Callable[[Any], None] = lambda result: None,
) -> Iterator[list[bool]]:
    """Watch the reentrant checkpoints that are called.

    Yields a list that holds, for each call that is running, the outermost
    first, whether gradients were on. Each result is passed to ``done``.
    """
    modes: list[bool] = []

    def watched(original: Callable) -> Callable:
        def apply(*args: Any, **kwargs: Any) -> Any:
            modes.append(torch.is_grad_enabled())
            try:
                result = original(*args, **kwargs)
            finally:
                modes.pop()
            done(result)
            return result

        return apply

    kinds: list[Any] = [CheckpointFunction]
    if _FAIRSCALE in sys.modules:
        kinds.append(sys.modules[_FAIRSCALE].CheckpointFunction)
    # Both inherit it.
    for kind in kinds:
        kind.apply = watched(kind.apply)
    try:
        yield modes
    finally:
        for kind in kinds:
            del kind.apply
