"""Record the order in which gradients are ready in a step."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .value_flow import code_location, reentrant_backward, watched_calls


@dataclass(frozen=True)
class ReadyGradient:
    """One time that the gradient of a parameter was ready, as DDP sees it."""

    name: str
    # Number of the backward pass it happened in: 0 for one that was called,
    # another number for each nested one.
    task: int
    # Whether it is known to have added nothing to the gradient, as an
    # undefined one, for which hooks run, too; or a hook has removed it.
    empty: bool = False
    # Number of the backward that was called, from 0.
    backward: int = 0
    # Whether the gradient was sparse then.
    sparse: bool = False


def accumulator_of(parameter: nn.Parameter) -> Any:
    """Return the function that adds up the gradient of a parameter.

    DDP listens there. Hooks of this function run for an undefined gradient,
    too; hooks of the parameter do so since PyTorch 2.7 only. They are gone
    with the function, when nobody holds it.
    """
    strided = parameter.layout is torch.strided
    with torch.enable_grad():
        view = parameter.view_as(parameter) if strided else parameter.clone()
    function = view.grad_fn
    # A class of tensors may wrap the view.
    while function.next_functions:
        function = function.next_functions[0][0]
    return function


class ReadyRecorder:
    """Context around a step that records when gradients are ready.

    A reentrant checkpoint runs its part again in the backward, and then a
    backward of its own. Gradients that are ready in there are recognised by
    the number of the pass, and the part by the modules that have just run.

    Args:
        model: Whose modules are watched.
        parameters: That are watched, by their names.
        find_empty: Also compare gradients, to find backwards that add zeros.
        watch_modules: Note the modules that run again in the backward; off
            for compiled ones, which hooks would change.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        *,
        find_empty: bool = False,
        watch_modules: bool = True,
    ) -> None:
        self._model = model
        self._parameters = parameters
        self._find_empty = find_empty
        self._watch_modules = watch_modules
        # Whether backwards from here on keep their graphs.
        self.retain_graphs = False
        self._exits = ExitStack()
        # Numbers of the backward passes that run, the outermost first.
        self._running: list[int] = []
        self._num_tasks = 0
        self._backward = -1
        self._ready: list[ReadyGradient] = []
        self._last: dict[str, Tensor] = {}
        # The reentrant checkpoint that has run last: a number, its outermost
        # modules, its location, and whether a gradient came of it.
        self._checkpoint: int | None = None
        self._rerun: list[str] = []
        self._location = ''
        self._rerun_used = False
        self._depth = 0
        self.reentrant: dict[str, str] = {}
        self.reran: dict[str, None] = {}
        self.in_forward: tuple[ReadyGradient, ...] = ()
        # Values before the first backward that has changed them.
        self.stepped: dict[str, Tensor] = {}
        # With a gradient that is gone at the end of its backward.
        self.removed: dict[str, None] = {}

    @property
    def ready(self) -> tuple[ReadyGradient, ...]:
        """What was ready after the forward, in its order."""
        return tuple(self._ready)

    def leave_forward(self) -> None:
        """What was ready so far was so within the forward."""
        self.in_forward = tuple(self._ready)
        self._ready.clear()
        self._backward = -1

    def watch_more(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Watch parameters, too, that the forward has made trainable.

        One that has a gradient already has got it within the forward.
        """
        self._parameters = {**self._parameters, **parameters}
        for name, parameter in parameters.items():
            if parameter.grad is not None:
                self.in_forward += (ReadyGradient(name, 0),)
            self._watch(name, parameter)

    @property
    def num_backwards(self) -> int:
        """How many backwards have been called since the forward."""
        return self._backward + 1

    def __enter__(self) -> 'ReadyRecorder':
        """Begin to record."""
        self._exits.enter_context(self._passes())
        for name, parameter in self._parameters.items():
            self._watch(name, parameter)
        if self._watch_modules:
            self._exits.enter_context(
                watched_calls(self._model, self._enter, self._leave)
            )
        return self

    def __exit__(self, *_: object) -> None:
        """End, and leave the model as it was."""
        self.close()

    def close(self) -> None:
        """End earlier than the context does."""
        self._exits.close()

    def _watch(self, name: str, parameter: nn.Parameter) -> None:
        if not parameter.requires_grad or is_lazy(parameter):
            return
        node = accumulator_of(parameter)
        self._exits.callback(lambda node: None, node)
        hook = node.register_hook(
            lambda _, grads: self._record(name, self._is_empty(name, grads[0]))
        )
        self._exits.callback(hook.remove)

    @contextmanager
    def _passes(self) -> Iterator[None]:
        """Number the backward passes; one within another is nested."""
        originals = torch.autograd.backward, torch.autograd.grad

        def kept(args: tuple, kwargs: dict, position: int) -> tuple:
            """The arguments, with those that keep the graph if it shall be."""
            if not self.retain_graphs or self._running:
                return args, kwargs
            if len(args) > position:
                return (*args[:position], True, *args[position + 1 :]), kwargs
            return args, {**kwargs, 'retain_graph': True}

        @wraps(originals[0])
        def backward(*args: Any, **kwargs: Any) -> None:
            args, kwargs = kept(args, kwargs, 2)
            if self._running:
                self._num_tasks += 1
                self._running.append(self._num_tasks)
                watch = nullcontext()
            else:
                self._backward += 1
                self._running.append(0)
                watch = self._watch_values()
            try:
                with watch:
                    originals[0](*args, **kwargs)
            finally:
                self._running.pop()

        @wraps(originals[1])
        def grad(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = kept(args, kwargs, 3)
            return originals[1](*args, **kwargs)

        torch.autograd.backward, torch.autograd.grad = backward, grad
        try:
            yield
        finally:
            torch.autograd.backward, torch.autograd.grad = originals

    @contextmanager
    def _watch_values(self) -> Iterator[None]:
        """Note the parameters that a backward changes, and lost gradients."""
        # Not on a GPU, whose memory may be full.
        before = {
            name: parameter.detach().to('cpu', copy=True)
            for name, parameter in self._parameters.items()
            if not is_lazy(parameter)
        }
        begin = len(self._ready)
        yield
        for name, value in before.items():
            if not is_same(self._parameters[name].detach().cpu(), value):
                self.stepped.setdefault(name, value)
        for gradient in self._ready[begin:]:
            if (
                not gradient.empty
                and self._parameters[gradient.name].grad is None
            ):
                self.removed[gradient.name] = None

    def _enter(self, name: str, *_: object) -> None:
        """Record a module whose forward runs in the backward."""
        if torch._C._current_graph_task_id() == -1:
            return
        self.reran[name] = None
        checkpoint = reentrant_backward() if self._depth == 0 else None
        if checkpoint is not None:
            if checkpoint != self._checkpoint or self._rerun_used:
                self._checkpoint, self._rerun = checkpoint, []
                self._rerun_used = False
                self._location = code_location(within_checkpoint=True)
            self._rerun.append(name)
        self._depth += 1

    def _leave(self, *_: object) -> None:
        if torch._C._current_graph_task_id() != -1:
            self._depth = max(self._depth - 1, 0)

    def _record(self, name: str, empty: bool) -> None:
        """Record that the gradient of a parameter is ready."""
        task = self._running[-1] if self._running else 0
        grad = self._parameters[name].grad
        self._ready.append(
            ReadyGradient(
                name,
                task,
                empty,
                max(self._backward, 0),
                grad is not None and grad.layout is not torch.strided,
            )
        )
        if task == 0:
            return
        self._rerun_used = True
        # The innermost module that holds all of those that ran again.
        levels = zip(*(module.split('.') for module in self._rerun))
        shared = takewhile(lambda level: len(set(level)) == 1, levels)
        module = '.'.join(level[0] for level in shared)
        module = module or name.rpartition('.')[0]
        self.reentrant[name] = ', '.join(
            filter(None, (module, self._location))
        )

    def _is_empty(self, name: str, added: Tensor | None) -> bool:
        """Whether a backward has added nothing to a gradient."""
        grad = self._parameters[name].grad
        if grad is None or added is None:
            return True
        if not self._find_empty:
            return False
        last, self._last[name] = self._last.get(name), grad.detach().clone()
        if last is None or last.layout is not grad.layout:
            return False
        return torch.equal(last.to_dense(), grad.to_dense())


def is_same(value: Tensor, other: Tensor) -> bool:
    """Whether tensors have the same values; NaN is the same as NaN."""
    if value.layout is not torch.strided:
        value, other = value.to_dense(), other.to_dense()
    return torch.equal(value, other) or (
        value.is_floating_point()
        and torch.equal(value.nan_to_num(), other.nan_to_num())
    )
