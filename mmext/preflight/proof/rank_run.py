"""Train in one of several real processes, and compare the gradients."""

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from mmengine.model import MMDistributedDataParallel
from torch import Tensor, nn
from torch import distributed as dist

from ..step_usage import StepUsage
from ..sync_cures import SyncSettings
from ..tracing import record_step, run_training_forward
from ._crash_place import error_place, modules_of_error
from ._step import STEP_ERRORS

__all__ = ['RankOutcome', 'RankResult', 'run_rank']


class RankOutcome(str, Enum):
    """How a process ended."""

    OK = 'ran to its end'
    UNFINISHED = 'a parameter had no gradient in the step before'
    READY_TWICE = 'a parameter was marked ready twice'
    GRAPH_CHANGED = 'static_graph, and the graph had changed'
    LOST = 'another process had ended'
    CRASHED = 'an error of the model itself'
    HUNG = 'no result within the time limit'


# Part of the message of an error of PyTorch's reducer, or of Gloo.
_MESSAGES = {
    'Expected to have finished reduction': RankOutcome.UNFINISHED,
    'Expected to mark a variable ready only once': RankOutcome.READY_TWICE,
    'training graph has changed': RankOutcome.GRAPH_CHANGED,
    'Connection closed by peer': RankOutcome.LOST,
    'Connection reset by peer': RankOutcome.LOST,
    'Timed out waiting': RankOutcome.LOST,
}


@dataclass(frozen=True)
class RankResult:
    """What one process has to tell.

    Attributes:
        rank: The process.
        outcome: How it ended.
        step: In which step, from 0; one more than there are if the end was
            noticed after the last, or was reached.
        usages: What each step does without a wrapper.
        error: Text of the error.
        place: Where the model raised it.
        differences: Of each step: the largest difference between the
            gradients and the mean over all processes of what each would have
            alone, as a part of the largest gradient.
        spreads: Of each step: the same between the processes.
        names: Parameters that differ, at most a few.
    """

    rank: int
    outcome: RankOutcome
    step: int = 0
    usages: tuple[StepUsage, ...] = ()
    error: str = ''
    place: str = ''
    differences: tuple[float, ...] = ()
    spreads: tuple[float, ...] = ()
    names: tuple[str, ...] = ()


_MAX_NAMES = 20


def run_rank(
    model: nn.Module,
    batches: Sequence[Any],
    settings: SyncSettings,
    tolerance: float = 1e-3,
) -> RankResult:
    """Train in this process of an initialised group.

    The weights are not changed by the steps, so that the gradients of each
    can be compared with those of the model without a wrapper.

    Args:
        model: A ``BaseModel`` on the CPU; with the weights of rank 0
            afterwards.
        batches: One for each step, of this process. Each process must have
            as many.
        settings: Of DDP.
        tolerance: Largest difference of a gradient that is none, as a part
            of the largest gradient of the step.

    Returns:
        What happened. Errors of a step are told, not raised.
    """
    rank = dist.get_rank()
    # Comparisons must not meet the reductions of a step that did not end.
    apart = dist.new_group(backend='gloo')
    model.train()
    step, usages = -1, []
    gradients: list[Tensor] = []
    alone: list[Tensor] = []
    try:
        wrapped = MMDistributedDataParallel(
            model,
            broadcast_buffers=False,
            find_unused_parameters=settings.find_unused_parameters,
            static_graph=settings.static_graph,
        )
        other = copy.deepcopy(model)
        for step, batch in enumerate(batches):
            usages.append(_step_alone(other, batch, step))
            alone.append(_flat_gradients(other))
        for step, batch in enumerate(batches):
            _loss(wrapped, batch, step).backward()
            gradients.append(_flat_gradients(model))
        step = len(batches)
        # What is missing in a step, the next forward notices.
        _loss(wrapped, batches[-1], step)
        truths, lows, highs = _compare(gradients, alone, apart)
    except STEP_ERRORS as error:
        return _failed(error, model, rank, step, tuple(usages))
    names = _names_of(model, gradients, truths, tolerance)
    return RankResult(
        rank=rank,
        outcome=RankOutcome.OK,
        step=step,
        usages=tuple(usages),
        differences=_parts(gradients, truths, truths),
        spreads=_parts(lows, highs, truths),
        names=names,
    )


def _seed(step: int) -> None:
    """The random numbers of a step, the same with and without a wrapper."""
    seed = 100 * step + dist.get_rank()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _step_alone(model: nn.Module, batch: Any, step: int) -> StepUsage:
    for parameter in model.parameters():
        parameter.grad = None
    _seed(step)
    data = model.data_preprocessor(copy.deepcopy(batch), True)
    return record_step(
        model,
        lambda: run_training_forward(model, data),
        lambda out: model.parse_losses(out)[0].sum(),
    )


def _loss(wrapped: nn.Module, batch: Any, step: int) -> Tensor:
    model = wrapped.module
    for parameter in model.parameters():
        parameter.grad = None
    _seed(step)
    data = model.data_preprocessor(copy.deepcopy(batch), True)
    outputs = run_training_forward(wrapped, data)
    return model.parse_losses(outputs)[0].sum()


def _trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]


def _flat_gradients(model: nn.Module) -> Tensor:
    """All gradients in one vector; none is zero."""
    return torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad)
            .detach()
            .flatten()
            .double()
            for _, p in _trainable(model)
        ]
    )


def _compare(
    gradients: Sequence[Tensor], alone: Sequence[Tensor], group: Any
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """True means, and the smallest and largest values of all processes."""
    truths, lows, highs = [], [], []
    for mine, own in zip(gradients, alone, strict=True):
        truth, low, high = own.clone(), mine.clone(), mine.clone()
        dist.all_reduce(truth, group=group)
        dist.all_reduce(low, op=dist.ReduceOp.MIN, group=group)
        dist.all_reduce(high, op=dist.ReduceOp.MAX, group=group)
        truths.append(truth / dist.get_world_size(group))
        lows.append(low)
        highs.append(high)
    return truths, lows, highs


def _parts(
    left: Sequence[Tensor], right: Sequence[Tensor], whole: Sequence[Tensor]
) -> tuple[float, ...]:
    return tuple(
        float((a - b).abs().max() / _scale(c))
        for a, b, c in zip(left, right, whole, strict=True)
    )


def _scale(truth: Tensor) -> Tensor:
    return truth.abs().max().clamp_min(1e-30)


def _names_of(
    model: nn.Module,
    gradients: Sequence[Tensor],
    truths: Sequence[Tensor],
    tolerance: float,
) -> tuple[str, ...]:
    """Parameters with wrong gradients."""
    wrong = [
        (mine - truth).abs() > tolerance * _scale(truth)
        for mine, truth in zip(gradients, truths, strict=True)
    ]
    named = _trainable(model)
    sizes = [parameter.numel() for _, parameter in named]
    parts = torch.stack(wrong).any(0).split(sizes)
    names = [name for (name, _), part in zip(named, parts) if part.any()]
    return tuple(names[:_MAX_NAMES])


def _failed(
    error: Exception,
    model: nn.Module,
    rank: int,
    step: int,
    usages: tuple[StepUsage, ...],
) -> RankResult:
    text = str(error)
    outcome = next(
        (found for part, found in _MESSAGES.items() if part in text),
        RankOutcome.CRASHED,
    )
    place = ''
    if outcome is RankOutcome.CRASHED:
        inside = ' > '.join(modules_of_error(error, model))
        place = ', '.join(filter(None, (inside, error_place(error))))
    return RankResult(
        rank=rank,
        outcome=outcome,
        step=step,
        usages=usages,
        error=f'{type(error).__name__}: {text}',
        place=place,
    )
