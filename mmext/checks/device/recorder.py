"""What a step lets the device do: by which line, and in which module."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..ddp import code_location
from .tensor import DeviceTensor, Memory, Observer


@dataclass(frozen=True)
class CallSite:
    """Where an operator was called.

    That of a backward is the site of what it goes back through.
    """

    operator: str
    # Of the model, with dots; empty outside of all.
    module: str
    # File, line and function.
    location: str
    backward: bool = False

    def __str__(self) -> str:
        """All of it, as a line of a report."""
        of = f', {self.module}' if self.module else ''
        back = 'backward of ' if self.backward else ''
        return f'{back}{self.operator} at {self.location}{of}'


# A change of the memory that is alive: a number, its bytes (less than zero
# where it is given back), and who has it.
MemoryEvent = tuple[int, int, CallSite]


class Recorder(Observer):
    """Counts and sites of a step, and all changes of its memory.

    Args:
        model: Whose modules are named.

    Attributes:
        reads: How often the host waits, by call site.
        uploads: Copies to the device.
        launches: Operators that run on it.
        without_values: Operators of which only the shapes are known.
        events: Changes of memory, in order.
        optimizer_at: Number of events before the optimizer's first step.
        failure: Error of a backward, which went on.
        gradients: Numbers of the memory of gradients at that time.
        workspaces: Numbers of what a single operator needs.
        spoiled: Where infinity or NaN is first made of finite values.
    """

    def __init__(self, model: nn.Module) -> None:
        self.reads: Counter[CallSite] = Counter()
        self.uploads: Counter[CallSite] = Counter()
        self.launches: Counter[CallSite] = Counter()
        self.without_values: set[str] = set()
        self.events: list[MemoryEvent] = []
        self.optimizer_at: int | None = None
        self.failure: RuntimeError | None = None
        self.gradients: set[int] = set()
        self.workspaces: set[int] = set()
        self.spoiled: CallSite | None = None
        self._names = {id(m): name for name, m in model.named_modules()}
        self._modules: list[str] = []
        self._operator, self._site, self._counts = '', None, False
        # Of the nodes of autograd, in order: number and site of the forward.
        self._nodes: list[int] = []
        self._sites: list[CallSite] = []
        self._owners: dict[int, tuple[int, CallSite]] = {}

    def begin(self, operator: str) -> None:
        """The events up to the next call are those of this operator."""
        self._operator, self._site = operator, None
        if torch.is_grad_enabled() and not torch._C._current_autograd_node():
            number = torch.autograd._get_sequence_nr() - 1
            if not self._nodes or number > self._nodes[-1]:
                self._nodes.append(number)
                self._sites.append(self._here())

    def _here(self) -> CallSite:
        if self._site is None:
            self._site = self._find_site()
        return self._site

    def _find_site(self) -> CallSite:
        node = torch._C._current_autograd_node()
        if node is None:
            module = self._modules[-1] if self._modules else ''
            return CallSite(self._operator, module, code_location())
        # Code of the model that runs in the backward.
        own = code_location(within_backward=True)
        if own:
            return CallSite(self._operator, '', own, backward=True)
        at = bisect_right(self._nodes, node._sequence_nr()) - 1
        if at < 0 or node.name().endswith('AccumulateGrad'):
            return CallSite(self._operator, '', 'accumulation', backward=True)
        forward = self._sites[at]
        return CallSite(
            self._operator, forward.module, forward.location, backward=True
        )

    def launch(self) -> None:
        """A kernel runs."""
        if self._counts:
            self.launches[self._here()] += 1

    def read(self) -> None:
        """The host waits for the device."""
        if self._counts:
            self.reads[self._here()] += 1

    def upload(self) -> None:
        """The device gets something from the host."""
        if self._counts:
            self.uploads[self._here()] += 1

    def allocate(self, memory: Memory) -> None:
        """There is new memory."""
        if memory.size:
            site = self._here()
            self._owners[memory.number] = memory.size, site
            self.events.append((memory.number, memory.size, site))

    def free(self, number: int) -> None:
        """Memory is given back."""
        if number in self._owners:
            size, site = self._owners.pop(number)
            self.events.append((number, -size, site))

    def workspace(self, size: int) -> None:
        """A kernel needs memory as long as it runs."""
        if self._counts:
            site, number = self._here(), -1 - len(self.events)
            self.workspaces.add(number)
            self.events.append((number, size, site))
            self.events.append((number, -size, site))

    def shapes_only(self, operator: str) -> None:
        """The CPU has no such operator: the values are zeros."""
        self.without_values.add(operator)

    def fail(self, error: RuntimeError) -> None:
        """A backward cannot go on; the first error counts."""
        self.failure = self.failure or error

    def spoil(self) -> None:
        """Infinity or NaN is made; the first one counts."""
        self.spoiled = self.spoiled or self._here()

    def where(self) -> str:
        """What runs, in words, for an error."""
        return f'; in {self._here()}'

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, operators are counted and modules say that they run."""

        def enter(module: nn.Module, args: tuple) -> None:
            outer = self._modules[-1] if self._modules else ''
            self._modules.append(self._names.get(id(module), outer))

        def leave(module: nn.Module, args: tuple, result: object) -> None:
            self._modules.pop()

        def before_step(optimizer: Optimizer, *args: object) -> None:
            if self.optimizer_at is None:
                self.optimizer_at = len(self.events)
                self.gradients = memory_numbers(
                    parameter.grad
                    for group in optimizer.param_groups
                    for parameter in group['params']
                )
            self._modules.append('optimizer')

        def after_step(optimizer: Optimizer, *args: object) -> None:
            self._modules.pop()

        handles = (
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
            register_optimizer_step_pre_hook(before_step),
            register_optimizer_step_post_hook(after_step),
        )
        self._counts = True
        try:
            yield
        finally:
            self._counts = False
            for handle in handles:
                handle.remove()


def memory_numbers(values: Iterable[Any]) -> set[int]:
    """Of those values that are tensors of the device."""
    return {
        value.memory.number
        for value in values
        if isinstance(value, DeviceTensor)
    }
