"""A training step on a device that only watches, and what it has seen.

By which line, and in which module.
"""

import copy
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from mmengine.optim import OptimWrapper, build_optim_wrapper
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

from ..ddp import code_location, run_training_forward
from .tensor import DeviceTensor, Memory, watched_device

MIB = 2**20
# Of what PyTorch's allocator gives.
_BLOCK = 512
# What a GPU may need beside it, as a part of it: segments that are cut up,
# other algorithms of cuDNN, its context.
_BESIDE = 0.25
KINDS = (
    'weights',
    'gradients',
    'optimizer states',
    'activations',
    'backward',
    'optimizer',
    'workspaces',
    'DDP buckets',
)


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


class Recorder:
    """Counts and sites of a step, and all changes of its memory.

    Args:
        model: Whose modules are named.
        looks: Whether to be told of values that are not finite.

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

    def __init__(self, model: nn.Module, *, looks: bool = False) -> None:
        self.looks = looks
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
        """A backward cannot go on; the first error counts.

        An exception in a backward ends the process: PyTorch calls the device
        while it unwinds, with the exception set.
        """
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


@dataclass(frozen=True)
class MemoryForecast:
    """Bytes on the device at the peak of a training step."""

    # Of what is alive, rounded as the allocator does, and of what cuDNN takes
    # for a convolution.
    peak: int
    # Kind -> bytes at the peak; KINDS has the kinds.
    parts: Mapping[str, int]
    # Of the largest that are alive at the peak: bytes, kind and call site.
    largest: Sequence[tuple[int, str, CallSite]] = field(repr=False)

    @property
    def most(self) -> int:
        """With what a GPU may need beside it; what is needed lies between."""
        return round(self.peak * (1 + _BESIDE))


@dataclass(frozen=True)
class Rehearsal:
    """What a training step would do on a GPU.

    Attributes:
        losses: Of the step, by name.
        reads: How often the host waits for the device, by call site.
        uploads: How often the device gets something from the host.
        launches: How many operators run on the device.
        memory: What is alive at the peak of a later step.
        without_values: Operators that the CPU does not have: their results
            were zeros, and what depends on them is not to be trusted.
        spoiled: Where infinity or NaN is first made of finite values, if a
            loss is not finite.
        model: The model after the step, on the device.
    """

    losses: Mapping[str, float]
    reads: Mapping[CallSite, int]
    uploads: Mapping[CallSite, int]
    launches: Mapping[CallSite, int]
    memory: MemoryForecast
    without_values: tuple[str, ...]
    spoiled: CallSite | None
    model: nn.Module = field(repr=False)

    def __str__(self) -> str:
        """All of it, to be read."""
        lines = [
            f'{title}: {sum(sites.values())}'
            for title, sites in (
                ('operators on the device', self.launches),
                ('copies to the device', self.uploads),
                ('times that the host waits for it', self.reads),
            )
        ]
        lines += [
            f'  {number:4}  {site}'
            for site, number in Counter(self.reads).most_common()
        ]
        memory = self.memory
        lines.append(
            f'memory at the peak: {memory.peak / MIB:,.0f} to '
            f'{memory.most / MIB:,.0f} MiB'
        )
        lines += [
            f'  {size / MIB:10,.1f} MiB  {kind}'
            for kind, size in memory.parts.items()
        ]
        lines.append('largest at the peak:')
        lines += [
            f'  {size / MIB:10,.1f} MiB  {kind}, {site}'
            for size, kind, site in memory.largest
        ]
        if self.without_values:
            lines.append(
                'only the shapes are known of the results of '
                f'{", ".join(self.without_values)}'
            )
        return '\n'.join(lines)


@contextmanager
def parameters_stay() -> Iterator[None]:
    """Inside, a module that is moved keeps its parameter objects."""
    future = torch.__future__
    before = future.get_swap_module_params_on_conversion()
    future.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        future.set_swap_module_params_on_conversion(before)


def rehearse(
    model: nn.Module,
    batch: Any,
    optim_wrapper: Mapping[str, Any] | None = None,
    *,
    world: int = 1,
) -> Rehearsal:
    """Take a training step on a device whose operators run on the CPU.

    The device, ``sim:0``, is one for PyTorch: tensors of it and of the host
    do not mix, autograd runs as on a GPU, and each operator is seen. Values
    are those of the CPU. A copy of the model takes the step; what is given
    stays as it is.

    Args:
        model: A ``BaseModel``, not wrapped, on the CPU.
        batch: As the data loader gives it.
        optim_wrapper: As in a config, also one of mixed precision; None for
            a step that ends with the backward.
        world: Processes of DDP, whose buckets need memory; 1 for none.

    Returns:
        What the step did, and the memory that a later one needs.

    Raises:
        DeviceMixError: If tensors of the device and of the host meet where a
            GPU's operator would refuse them; with the line and the module.
        TypeError: If the model has no ``train_step``.
        ValueError: If ``world`` is less than 1.
        RuntimeError: If PyTorch is older than 2.13.

    Examples:
        >>> import torch
        >>> from mmengine.model import BaseModel
        >>> class Net(BaseModel):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = nn.Linear(256, 1)
        ...
        ...     def forward(self, inputs, mode='loss'):
        ...         loss = self.layer(inputs.relu()).sum()
        ...         return {'loss': loss if loss > 0 else -loss}
        >>> done = rehearse(Net(), {'inputs': torch.ones(1000, 256)})
        >>> done.memory.parts['activations'] // 1000
        2052
        >>> [(site.operator, count) for site, count in done.reads.items()]
        [('_local_scalar_dense', 1)]
    """
    if not hasattr(model, 'train_step'):
        raise TypeError(
            'model must be a BaseModel without a wrapper, got '
            f'{type(model).__name__}'
        )
    if world < 1:
        raise ValueError(f'world must be at least 1, got {world}')
    model = copy.deepcopy(model)
    recorder = Recorder(model)
    with watched_device(recorder) as device:
        with parameters_stay():
            model.to(device)
        tensors = (*model.parameters(), *model.buffers())
        weights = memory_numbers(tensors)
        model.train()
        wrapper = None
        if optim_wrapper is not None:
            wrapper = _build_optimizer(model, optim_wrapper)
        with recorder.watching():
            losses = _step(model, copy.deepcopy(batch), wrapper)
        losses = {
            name: float(getattr(value, 'elem', value))
            for name, value in losses.items()
        }
        if recorder.failure is not None:
            raise recorder.failure
        spoiled = None
        if not all(math.isfinite(value) for value in losses.values()):
            spoiled = _find_spoiled(model, batch, wrapper)
        kinds = dict.fromkeys(weights, 'weights')
        kinds |= dict.fromkeys(recorder.workspaces, 'workspaces')
        trained = [p for p in model.parameters() if p.requires_grad]
        gradients = recorder.gradients or memory_numbers(
            p.grad for p in trained
        )
        kinds |= dict.fromkeys(gradients, 'gradients')
        if wrapper is not None:
            kinds |= dict.fromkeys(_states(wrapper), 'optimizer states')
        early = ['optimizer states']
        if optim_wrapper and optim_wrapper.get('accumulative_counts', 1) > 1:
            early.append('gradients')
        memory = _forecast(
            recorder.events,
            kinds,
            early,
            optimizer_at=recorder.optimizer_at,
            buckets=sum(p.nbytes for p in trained) if world > 1 else 0,
        )
    return Rehearsal(
        losses=losses,
        reads=recorder.reads,
        uploads=recorder.uploads,
        launches=recorder.launches,
        memory=memory,
        without_values=tuple(sorted(recorder.without_values)),
        spoiled=spoiled,
        model=model,
    )


def _build_optimizer(model: nn.Module, cfg: Mapping[str, Any]) -> OptimWrapper:
    """That of a config, which steps at once and does not overflow."""
    cfg = copy.deepcopy(dict(cfg))
    if 'accumulative_counts' in cfg:
        cfg['accumulative_counts'] = 1
    wrapper = build_optim_wrapper(model, cfg)
    scaler = getattr(wrapper, 'loss_scaler', None)
    if scaler is not None:
        wrapper.loss_scaler = type(scaler)(init_scale=1.0)
    return wrapper


def _step(
    model: nn.Module, batch: Any, optim_wrapper: OptimWrapper | None
) -> Mapping[str, Any]:
    if optim_wrapper is not None:
        return model.train_step(batch, optim_wrapper)
    data = model.data_preprocessor(batch, True)
    losses = run_training_forward(model, data)
    loss, losses = model.parse_losses(losses)
    loss.backward()
    return losses


def _find_spoiled(
    model: nn.Module, batch: Any, optim_wrapper: OptimWrapper | None
) -> CallSite | None:
    """Run the forward again, and look at what each operator makes."""
    context = nullcontext()
    if isinstance(optim_wrapper, OptimWrapper):
        context = optim_wrapper.optim_context(model)
    recorder = Recorder(model, looks=True)
    with (
        watched_device(recorder),
        recorder.watching(),
        torch.no_grad(),
        context,
    ):
        data = model.data_preprocessor(copy.deepcopy(batch), True)
        run_training_forward(model, data)
    return recorder.spoiled


def _states(optim_wrapper: OptimWrapper) -> set[int]:
    """Memory of the states of all optimizers of a wrapper."""
    values = getattr(optim_wrapper, 'values', lambda: [optim_wrapper])()
    return memory_numbers(
        value
        for wrapper in values
        for state in wrapper.optimizer.state.values()
        for value in state.values()
    )


def _rounded(size: int) -> int:
    """Bytes that the allocator gives for so many."""
    return -(-size // _BLOCK) * _BLOCK


def _forecast(
    events: Sequence[MemoryEvent],
    kinds: Mapping[int, str],
    early: Sequence[str],
    *,
    optimizer_at: int | None,
    buckets: int = 0,
) -> MemoryForecast:
    """The peak of a later step, from the first one.

    What the first step leaves, such as the states of its optimizer, is there
    from the beginning of the later ones.

    Args:
        events: Of building the model and of the step.
        kinds: What memory is for, by number, where it is known.
        early: Kinds that a step leaves.
        optimizer_at: Number of events before the optimizer's step.
        buckets: Bytes of DDP's buckets.
    """
    end = len(events) if optimizer_at is None else optimizer_at
    kind_of = dict(kinds)
    for at, (number, size, site) in enumerate(events):
        if size > 0 and number not in kind_of:
            before = 'backward' if site.backward else 'activations'
            kind_of[number] = before if at < end else 'optimizer'
    left = {number for number, kind in kind_of.items() if kind in early}
    order = [event for event in events if event[0] in left and event[1] > 0]
    order += [event for event in events if event[0] not in left]
    held = peak = _rounded(buckets)
    peak_at = -1
    for at, (_, size, _) in enumerate(order):
        held += _rounded(size) if size > 0 else -_rounded(-size)
        if held > peak:
            peak, peak_at = held, at
    alive: dict[int, tuple[int, CallSite]] = {}
    for number, size, site in order[: peak_at + 1]:
        if size < 0:
            del alive[number]
        else:
            alive[number] = size, site
    parts = Counter({'DDP buckets': _rounded(buckets)})
    for number, (size, _) in alive.items():
        parts[kind_of[number]] += _rounded(size)
    largest = sorted(alive.items(), key=lambda item: -item[1][0])[:10]
    return MemoryForecast(
        peak=peak,
        parts={kind: parts[kind] for kind in KINDS if parts[kind]},
        largest=tuple(
            (size, kind_of[number], site) for number, (size, site) in largest
        ),
    )
