"""Record the order in which gradients are ready in a step."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parameter import is_lazy

from .value_flow import code_location, reentrant_backward


@dataclass(frozen=True)
class ReadyGradient:
    """One time that the gradient of a parameter was ready, as DDP sees it."""

    name: str
    # Number of the backward pass it happened in: 0 for one that was called,
    # another number for each nested one.
    task: int
    # Whether it is known to have added nothing to the gradient.
    empty: bool = False
    # Number of the backward that was called, from 0.
    backward: int = 0
    # Whether the gradient was sparse then.
    sparse: bool = False


class ReadyRecorder:
    """Context around a step that records when gradients are ready.

    A reentrant checkpoint runs its part again in the backward, and then a
    backward of its own. Gradients that are ready in there are recognised by
    the number of the pass, and the part by the modules that have just run.

    Args:
        model: Whose modules are watched.
        parameters: That are watched, by their names.
        as_reducer: Hear what DDP's reducer hears, parameters without a
            gradient included, and find those that add nothing.
        watch_modules: Note the modules that run again in the backward; off
            for compiled ones, which hooks would change.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        *,
        as_reducer: bool = False,
        watch_modules: bool = True,
    ) -> None:
        self._model = model
        self._parameters = parameters
        self._as_reducer = as_reducer
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
        self._versions: dict[str, int] = {}
        # Changed, or without their gradient, when that was ready.
        self.stepped: dict[str, str] = {}

    @property
    def ready(self) -> tuple[ReadyGradient, ...]:
        """What was ready after the forward, in its order."""
        return tuple(self._ready)

    def leave_forward(self) -> None:
        """What was ready so far was so within the forward."""
        self.in_forward = tuple(self._ready)
        self._ready.clear()
        self._backward = -1
        self._versions = {n: p._version for n, p in self._parameters.items()}

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
            for name, module in self._model.named_modules():
                enter = module.register_forward_pre_hook(
                    partial(self._enter, name)
                )
                leave = module.register_forward_hook(
                    self._leave, always_call=True
                )
                self._exits.callback(enter.remove)
                self._exits.callback(leave.remove)
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
        if self._as_reducer:
            node = get_gradient_edge(parameter).node
            # It is gone, and the hook with it, when nobody holds it.
            self._exits.callback(lambda node: None, node)
            hook = node.register_hook(
                lambda _, grads: self._record(
                    name, self._is_empty(name, grads)
                )
            )
        else:
            hook = parameter.register_post_accumulate_grad_hook(
                lambda _: self._record(name)
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
            else:
                self._backward += 1
                self._running.append(0)
            try:
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

    def _record(self, name: str, empty: bool = False) -> None:
        """Record that the gradient of a parameter is ready."""
        task = self._running[-1] if self._running else 0
        grad = self._parameters[name].grad
        version = self._versions.get(name)
        if version is not None and (
            grad is None or version != self._parameters[name]._version
        ):
            self.stepped[name] = (
                'a hook of the parameter uses it in the backward, before DDP '
                'has averaged it, as an optimizer that steps there does'
            )
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

    def _is_empty(self, name: str, grads: tuple[Tensor | None, ...]) -> bool:
        """Whether the gradient is what it was when it was ready before."""
        grad = self._parameters[name].grad
        if grad is None or grads[0] is None:
            return True
        last, self._last[name] = self._last.get(name), grad.detach().clone()
        if last is None or last.layout is not grad.layout:
            return False
        return torch.equal(last.to_dense(), grad.to_dense())
