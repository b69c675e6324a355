"""A training step on a device that only watches, and what it has seen."""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from torch import nn

from ..ddp import run_training_forward
from .memory import MIB, MemoryForecast, forecast
from .recorder import Place, Recorder, memory_numbers
from .tensor import watched_device


@dataclass(frozen=True)
class Rehearsal:
    """What a training step would do on a GPU.

    Attributes:
        losses: Of the step, by name.
        reads: How often the host waits for the device, by place.
        uploads: How often the device gets something from the host.
        launches: How many operators run on the device.
        memory: What is alive at the peak of a later step.
        without_values: Operators that the CPU does not have: their results
            were zeros, and what depends on them is not to be trusted.
        model: The model after the step, on the device.
    """

    losses: Mapping[str, float]
    reads: Mapping[Place, int]
    uploads: Mapping[Place, int]
    launches: Mapping[Place, int]
    memory: MemoryForecast
    without_values: tuple[str, ...]
    model: nn.Module = field(repr=False)

    def __str__(self) -> str:
        """All of it, to be read."""
        lines = [
            f'{title}: {sum(places.values())}'
            for title, places in (
                ('operators on the device', self.launches),
                ('copies to the device', self.uploads),
                ('times that the host waits for it', self.reads),
            )
        ]
        lines += [
            f'  {number:4}  {place}'
            for place, number in Counter(self.reads).most_common()
        ]
        memory = self.memory
        lines.append(
            f'memory at the peak: {memory.peak / MIB:,.0f} MiB, in segments '
            f'of {memory.reserved / MIB:,.0f} MiB'
        )
        lines += [
            f'  {size / MIB:10,.1f} MiB  {kind}'
            for kind, size in memory.parts.items()
        ]
        lines.append('largest at the peak:')
        lines += [
            f'  {size / MIB:10,.1f} MiB  {kind}, {place}'
            for size, kind, place in memory.largest
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
    optim_wrapper: OptimWrapper | None = None,
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
        optim_wrapper: That of the model; None for a step that ends with the
            backward.
        world: Processes of DDP, whose buckets need memory; 1 for none.

    Returns:
        What the step did, and the memory that a later one needs.

    Raises:
        DeviceMixError: If tensors of the device and of the host meet where a
            GPU's operator would refuse them; with the line and the module.
        TypeError: If the model has no ``train_step``.
        ValueError: If ``world`` is less than 1, or the optimizer wrapper one
            of mixed precision.
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
        >>> [(place.operator, count) for place, count in done.reads.items()]
        [('_local_scalar_dense', 1)]
    """
    if not hasattr(model, 'train_step'):
        raise TypeError(
            'model must be a BaseModel without a wrapper, got '
            f'{type(model).__name__}'
        )
    if isinstance(optim_wrapper, AmpOptimWrapper):
        raise ValueError(
            'optim_wrapper must be one of float32, as mixed precision is not '
            f'rehearsed, got {type(optim_wrapper).__name__}'
        )
    if world < 1:
        raise ValueError(f'world must be at least 1, got {world}')
    model, optim_wrapper = copy.deepcopy((model, optim_wrapper))
    recorder = Recorder(model)
    with watched_device(recorder) as device:
        with parameters_stay():
            model.to(device)
        tensors = (*model.parameters(), *model.buffers())
        weights = memory_numbers(tensors)
        model.train()
        with recorder.watching():
            losses = _step(model, copy.deepcopy(batch), optim_wrapper)
        if recorder.failure is not None:
            raise recorder.failure
        kinds = dict.fromkeys(weights, 'weights')
        trained = [p for p in model.parameters() if p.requires_grad]
        gradients = recorder.gradients or memory_numbers(
            p.grad for p in trained
        )
        kinds |= dict.fromkeys(gradients, 'gradients')
        if optim_wrapper is not None:
            kinds |= dict.fromkeys(_states(optim_wrapper), 'optimizer states')
        losses = {
            name: float(getattr(value, 'elem', value))
            for name, value in losses.items()
        }
        memory = forecast(
            recorder.events,
            kinds,
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
        model=model,
    )


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


def _states(optim_wrapper: OptimWrapper) -> set[int]:
    """Memory of the states of all optimizers of a wrapper."""
    values = getattr(optim_wrapper, 'values', lambda: [optim_wrapper])()
    return memory_numbers(
        value
        for wrapper in values
        for state in wrapper.optimizer.state.values()
        for value in state.values()
    )
