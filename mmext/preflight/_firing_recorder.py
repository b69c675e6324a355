"""Record completed gradients, and what a nested backward belongs to."""

from collections.abc import Mapping
from contextlib import ExitStack
from itertools import takewhile
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from ._code_place import code_place, reentrant_backward
from .step_usage import Firing

__all__ = ['FiringRecorder']


def _task() -> int:
    """Number of the running backward pass, -1 outside of any."""
    return torch._C._current_graph_task_id()


def _common_module(names: list[str]) -> str:
    """The innermost module that holds all of some modules."""
    shared = takewhile(
        lambda level: len(set(level)) == 1,
        zip(*(name.split('.') for name in names)),
    )
    return '.'.join(level[0] for level in shared)


class FiringRecorder:
    """Context around a backward.

    A reentrant checkpoint runs its part again in the backward, and then a
    backward of its own: gradients that are completed in there are told by
    the number of the pass, and the part by the modules that have just run.

    Args:
        model: The model.
        parameters: The parameters to watch, by name.
        as_reducer: Hear what DDP's reducer hears, firings without a
            gradient included, and find those that add nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        *,
        as_reducer: bool = False,
    ) -> None:
        self._model = model
        self._parameters = parameters
        self._exits = ExitStack()
        self._outer: int | None = None
        self._depth = 0
        self._number: int | None = None
        self._rerun: list[str] = []
        self._place = ''
        self._rerun_used = False
        self._firings: list[tuple[str, int, bool]] = []
        self._as_reducer = as_reducer
        self._last: dict[str, Tensor] = {}
        self.reentrant: dict[str, str] = {}
        self.reran: dict[str, None] = {}

    def watch(self, loss: Tensor) -> None:
        """Take the backward of ``loss`` for the outer pass."""

        def remember(grad: Tensor) -> None:
            if self._outer is None:
                self._outer = _task()

        loss.register_hook(remember)

    @property
    def firings(self) -> tuple[Firing, ...]:
        """What was completed, in its order; the outer pass has number 0."""
        numbers = {self._outer: 0}
        for _, task, _ in self._firings:
            numbers.setdefault(task, len(numbers))
        return tuple(
            Firing(name, numbers[task], empty)
            for name, task, empty in self._firings
        )

    def __enter__(self) -> 'FiringRecorder':
        """Begin to record."""
        for name, parameter in self._parameters.items():
            if self._as_reducer:
                node = get_gradient_edge(parameter).node
                # It is gone, and the hook with it, when nobody holds it.
                self._exits.callback(lambda node: None, node)
                hook = node.register_hook(
                    lambda _, grads, name=name: self._fire(
                        name, self._is_empty(name, grads)
                    )
                )
            else:
                hook = parameter.register_post_accumulate_grad_hook(
                    lambda _, name=name: self._fire(name)
                )
            self._add(hook)
        for name, module in self._model.named_modules():
            self._add(
                module.register_forward_pre_hook(
                    lambda *_, name=name: self._enter(name)
                )
            )
            self._add(
                module.register_forward_hook(self._leave, always_call=True)
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End, and leave the model as it was."""
        self._exits.close()

    def _add(self, hook: torch.utils.hooks.RemovableHandle) -> None:
        self._exits.callback(hook.remove)

    def _enter(self, name: str) -> None:
        if _task() == -1:
            return
        self.reran[name] = None
        if self._depth == 0:
            self._note_rerun(name)
        self._depth += 1

    def _note_rerun(self, name: str) -> None:
        """An outermost module that is run again in the backward."""
        number = reentrant_backward()
        if number is None:
            return
        if number != self._number or self._rerun_used:
            self._number, self._rerun, self._rerun_used = number, [], False
            self._place = code_place(within_checkpoint=True)
        self._rerun.append(name)

    def _leave(self, *_: object) -> None:
        if _task() != -1:
            self._depth = max(self._depth - 1, 0)

    def _fire(self, name: str, empty: bool = False) -> None:
        task = _task()
        self._firings.append((name, task, empty))
        if self._outer is None or task == self._outer:
            return
        self._rerun_used = True
        module = _common_module(self._rerun)
        if not module:
            module = name.rpartition('.')[0]
        self.reentrant[name] = (
            f'{module}, {self._place}' if self._place else module
        )

    def _is_empty(self, name: str, grads: tuple[Tensor | None, ...]) -> bool:
        """Whether the gradient is what it was at the firing before."""
        grad = self._parameters[name].grad
        if grad is None or grads[0] is None:
            return True
        last, self._last[name] = self._last.get(name), grad.detach().clone()
        return last is not None and torch.equal(last, grad)
