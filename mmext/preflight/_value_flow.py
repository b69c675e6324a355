"""Follow the values of parameters through a forward.

Autograd's graph tells which parameters reach the loss; it is silent about
those that do not. Here each call of a torch function is seen on its way: what
went in, what came out, whether gradients were on.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from ._checkpoint_calls import checkpoint_calls
from ._code_place import checkpoint_call_site, code_place
from ._graph import tensors_in

__all__ = ['Cut', 'ValueFlow']

# They answer questions about a tensor and compute nothing with it.
_QUESTIONS = frozenset(
    (
        'size',
        'dim',
        'stride',
        'numel',
        'nelement',
        'element_size',
        'storage_offset',
        'data_ptr',
        'is_contiguous',
        'is_floating_point',
        'is_complex',
        'get_device',
        '__len__',
        '__hash__',
        'requires_grad_',
        'register_hook',
        '__repr__',
        '__format__',
        'retain_grad',
        'register_post_accumulate_grad_hook',
        'untyped_storage',
    )
)


@dataclass(frozen=True)
class Cut:
    """A place where values go on and gradients do not.

    Attributes:
        cause: ``'no_grad'``, ``'checkpoint'`` (a reentrant one runs its part
            under no_grad) or ``'function'``.
        function: Name of the torch function.
        place: Module and line of code.
    """

    cause: str
    function: str
    place: str


@dataclass
class _Trace:
    """Parameters in a tensor, as bits: with gradients, and cut off."""

    live: int = 0
    cut: dict[Cut, int] = field(default_factory=dict)

    def add(self, other: '_Trace') -> None:
        self.live |= other.live
        for cut, bits in other.cut.items():
            self.cut[cut] = self.cut.get(cut, 0) | bits

    def __bool__(self) -> bool:
        return bool(self.live or self.cut)


class ValueFlow(TorchFunctionMode):
    """Context that records what becomes of parameters.

    Functions that are implemented outside of Python are taken as a whole:
    where a module returns tensors of unknown origin, they are taken to come
    from all that went into the module.

    Args:
        model: The model whose forward will run inside.
        names: Names of the parameters to follow.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        parameters = dict(model.named_parameters())
        self._bits = {id(parameters[name]): i for i, name in enumerate(names)}
        self._model = model
        self._traces = WeakIdKeyDictionary()
        self._modules: list[tuple[str, _Trace]] = []
        self._exits = ExitStack()
        self._checkpoints: list[bool] = []
        self.used = 0
        self.no_grad_cuts: dict[int, Cut] = {}
        self.call_sites: dict[int, str] = {}
        self.module_calls: dict[str, int] = {}

    def __enter__(self) -> 'ValueFlow':
        """Begin to record."""
        self._checkpoints = self._exits.enter_context(
            checkpoint_calls(self._leave_checkpoint)
        )
        for name, module in self._model.named_modules():
            hooks = (
                module.register_forward_pre_hook(
                    self._enter_module(name), with_kwargs=True
                ),
                module.register_forward_hook(
                    self._leave_module, with_kwargs=True, always_call=True
                ),
            )
            for hook in hooks:
                self._exits.callback(hook.remove)
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End, and leave the model as it was."""
        self._exits.close()
        super().__exit__(kind, error, traceback)

    @property
    def module(self) -> str:
        """Name of the module whose forward is running."""
        return self._modules[-1][0] if self._modules else ''

    def cut_before(self, tensors: Iterable[Tensor]) -> dict[int, Cut]:
        """Where the parameters whose values are in some tensors were cut.

        Args:
            tensors: Such as the losses.

        Returns:
            Index of the parameter -> the first cut on its way.
        """
        total = _Trace()
        for tensor in tensors:
            total.add(self._trace_of(tensor))
        return {
            index: cut
            for cut, bits in reversed(total.cut.items())
            for index in _indices(bits)
        }

    def _enter_module(self, name: str) -> Callable:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            self.module_calls[name] = self.module_calls.get(name, 0) + 1
            inputs = _Trace()
            for tensor in tensors_in((args, kwargs)):
                inputs.add(self._trace_of(tensor))
            self._modules.append((name, inputs))

        return hook

    def _leave_module(
        self, module: nn.Module, args: tuple, kwargs: dict, output: Any
    ) -> None:
        _, known = self._modules.pop()
        for tensor in tensors_in(output):
            if tensor not in self._traces and id(tensor) not in self._bits:
                self._note(tensor, known, type(module).__name__)
        if self._modules:
            # What a part has used, the whole has used.
            self._modules[-1][1].add(known)

    def _leave_checkpoint(self, result: Any) -> None:
        """What needs a gradient now, was not cut off by the checkpoint."""
        for tensor in tensors_in(result):
            trace = self._traces.get(tensor)
            if trace is None or not tensor.requires_grad:
                continue
            for cut in [c for c in trace.cut if c.cause == 'checkpoint']:
                trace.live |= trace.cut.pop(cut)

    def _trace_of(self, tensor: Tensor) -> _Trace:
        index = self._bits.get(id(tensor))
        if index is not None:
            return _Trace(1 << index)
        return self._traces.get(tensor) or _Trace()

    def _cut(self, function: str) -> Cut:
        cause = 'function'
        if not torch.is_grad_enabled():
            inside = self._checkpoints[:1] == [True]
            cause = 'checkpoint' if inside else 'no_grad'
        module = self.module
        where = f'{module}, {code_place()}' if module else code_place()
        return Cut(cause, function, where)

    def _note(self, tensor: Tensor, inputs: _Trace, function: str) -> None:
        """Note what a result was computed from."""
        trace = _Trace()
        trace.add(inputs)
        if trace.live and not tensor.requires_grad:
            cut = self._cut(function)
            trace.cut[cut] = trace.cut.get(cut, 0) | trace.live
            trace.live = 0
        if trace:
            self._traces[tensor] = trace

    def __torch_function__(
        self,
        func: Callable,
        types: Any,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        """Run a torch function and note what it did."""
        result = func(*args, **(kwargs or {}))
        name = _name_of(func)
        if name is None:
            return result
        inputs, direct = _Trace(), 0
        for tensor in tensors_in((args, kwargs)):
            trace = self._trace_of(tensor)
            inputs.add(trace)
            if id(tensor) in self._bits:
                direct |= trace.live
        if not inputs:
            return result
        if direct:
            self._note_use(direct, name)
        if self._modules:
            self._modules[-1][1].add(inputs)
        # Of these the result is the changed first argument, or None.
        outputs = args[:1] if name == '__setitem__' else result
        for tensor in tensors_in(outputs):
            if id(tensor) not in self._bits:
                self._note(tensor, inputs, name)
        return result

    def _note_use(self, bits: int, function: str) -> None:
        if torch.is_grad_enabled():
            self.used |= bits
            return
        new = [i for i in _indices(bits) if i not in self.no_grad_cuts]
        if not new:
            return
        cut = self._cut(function)
        self.no_grad_cuts.update(dict.fromkeys(new, cut))
        if cut.cause == 'checkpoint':
            site = checkpoint_call_site()
            self.call_sites.update(dict.fromkeys(new, site))

    def is_used(self, index: int) -> bool:
        """Whether a parameter was an input while gradients were on."""
        return bool(self.used >> index & 1)


def _indices(bits: int) -> list[int]:
    """Positions of the bits that are set."""
    return [i for i in range(bits.bit_length()) if bits >> i & 1]


def _name_of(func: Callable) -> str | None:
    """Name of a torch function, None for one that computes nothing."""
    name = getattr(func, '__name__', '')
    if name == '__get__':
        # A property; the name is that of what it belongs to.
        name = getattr(getattr(func, '__self__', None), '__name__', '')
        return name if name in ('data', 'T', 'mT', 'H', 'real') else None
    if name in ('__set__', '__delete__') or name in _QUESTIONS:
        return None
    return name or 'function'
