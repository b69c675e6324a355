"""Train in real processes, and compare with what was predicted."""

import copy
import dataclasses
import faulthandler
import multiprocessing
import os
import pickle
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.model import MMDistributedDataParallel
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parameter import is_lazy

from ...engine.distributed import group_timeout_s, watch_parent
from ...utils.contain import Contained, code_place
from ...utils.safe_load import careful_readers
from ..config import read_config
from ..ddp import (
    Outcome,
    Prediction,
    StepUsage,
    SyncSettings,
    predict_failures,
    record_step,
    run_training_forward,
)
from .dry_run.options import current_settings
from .dry_run.step import (
    error_place,
    modules_of_error,
    own_backward,
)


class RankOutcome(str, Enum):
    """How a process ended."""

    OK = 'ran to its end'
    UNFINISHED = 'a parameter had no gradient in the step before'
    READY_TWICE = 'a parameter was marked ready twice'
    GRAPH_CHANGED = 'static_graph, and the graph had changed'
    UNEXPECTED = 'a gradient was sparse, dense or missing unexpectedly'
    REFUSED = 'DDP refused the model'
    LOST = 'another process had ended'
    CRASHED = 'an error of the model itself'
    HUNG = 'no result within the time limit'


# Part of the message of an error of PyTorch's reducer, or of Gloo.
_MESSAGES = {
    'Expected to have finished reduction': RankOutcome.UNFINISHED,
    'Expected to mark a variable ready only once': RankOutcome.READY_TWICE,
    'training graph has changed': RankOutcome.GRAPH_CHANGED,
    'Expected sparse gradient': RankOutcome.UNEXPECTED,
    'Expected variable to have sparse gradient': RankOutcome.UNEXPECTED,
    'Cannot access storage of SparseTensorImpl': RankOutcome.UNEXPECTED,
    'Encountered gradient which is undefined': RankOutcome.UNEXPECTED,
    'Modules with uninitialized parameters': RankOutcome.REFUSED,
    "doesn't have any parameters that require a": RankOutcome.REFUSED,
    'Connection closed by peer': RankOutcome.LOST,
    'Connection reset by peer': RankOutcome.LOST,
    'Timed out waiting': RankOutcome.LOST,
}


@dataclass(frozen=True)
class RankResult:
    """What one process reports.

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
    optim_wrapper: Any = None,
) -> RankResult:
    """Train in this process of an initialised group; errors are returned.

    The weights are not changed by the steps, so that the gradients of each can
    be compared with those of the model without a wrapper. Each process needs
    as many batches, one a step. ``tolerance`` is the largest difference of a
    gradient that counts as none, as a part of the largest gradient of the
    step. Of ``optim_wrapper`` only its own kind of backward is used.
    """
    rank = dist.get_rank()
    # Comparisons must not meet the reductions of a step that did not end.
    apart = dist.new_group(
        backend='gloo',
        timeout=timedelta(seconds=group_timeout_s(dist.group.WORLD)),
    )
    model.train()
    step, usages = -1, []
    gradients: list[dict[str, Tensor]] = []
    alone: list[dict[str, Tensor]] = []
    lazy = tuple(n for n, p in model.named_parameters() if is_lazy(p))
    if lazy:
        usages.append(StepUsage((), (), frozenset(), lazy=lazy))
    failed: list[Exception] = []
    with Contained(failed.append):
        wrapped = MMDistributedDataParallel(
            model,
            broadcast_buffers=False,
            find_unused_parameters=settings.find_unused_parameters,
            static_graph=settings.static_graph,
        )
        other, other_optim = copy.deepcopy((model, optim_wrapper))
        backward = own_backward(other_optim)
        for step, batch in enumerate(batches):
            usages.append(_step_alone(other, batch, step, backward))
            alone.append(_gradients(other))
        backward = own_backward(optim_wrapper)
        for step, batch in enumerate(batches):
            loss = _loss(wrapped, batch, step, backward)
            (backward or Tensor.backward)(loss)
            gradients.append(_gradients(model))
        step = len(batches)
        # What is missing in a step, the next forward notices.
        _loss(wrapped, batches[-1], step, backward)
        truths, lows, highs = _compare(gradients, alone, apart)
    for error in failed:
        return _failed(error, model, rank, step, tuple(usages))
    names = _wrong_parameters(gradients, truths, tolerance)
    gradients = [_flat(step_gradients) for step_gradients in gradients]
    return RankResult(
        rank=rank,
        outcome=RankOutcome.OK,
        step=step,
        usages=tuple(usages),
        differences=_relative(gradients, truths, truths),
        spreads=_relative(lows, highs, truths),
        names=names,
    )


def _seed(step: int) -> None:
    """The random numbers of a step, the same with and without a wrapper."""
    seed = 100 * step + dist.get_rank()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _step_alone(
    model: nn.Module,
    batch: Any,
    step: int,
    backward: Callable[[Tensor], None] | None,
) -> StepUsage:
    for parameter in model.parameters():
        parameter.grad = None
    _seed(step)
    data = model.data_preprocessor(copy.deepcopy(batch), True)
    usage = record_step(
        model,
        lambda: run_training_forward(model, data),
        lambda out: _total(model, out, backward),
        backward=backward,
    )
    # Only gradients are compared.
    return dataclasses.replace(usage, stepped={})


def _total(
    model: nn.Module,
    outputs: Any,
    backward: Callable[[Tensor], None] | None,
) -> Tensor:
    """What is differentiated; gradient surgery has one loss for each task."""
    loss = model.parse_losses(outputs)[0]
    return loss.sum() if backward is None else loss


def _loss(
    wrapped: nn.Module,
    batch: Any,
    step: int,
    backward: Callable[[Tensor], None] | None,
) -> Tensor:
    model = wrapped.module
    for parameter in model.parameters():
        parameter.grad = None
    _seed(step)
    data = model.data_preprocessor(copy.deepcopy(batch), True)
    outputs = run_training_forward(wrapped, data)
    return _total(model, outputs, backward)


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    """The gradient of each trainable parameter; none is zero."""
    return {
        name: (torch.zeros_like(p) if p.grad is None else p.grad.to_dense())
        .detach()
        .flatten()
        .double()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def _flat(gradients: Mapping[str, Tensor]) -> Tensor:
    """All gradients in one vector."""
    return torch.cat([torch.zeros(0).double(), *gradients.values()])


def _compare(
    gradients: Sequence[Mapping[str, Tensor]],
    alone: Sequence[Mapping[str, Tensor]],
    group: Any,
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """True means, and the smallest and largest values of all processes."""
    truths, lows, highs = [], [], []
    for mine, own in zip(gradients, alone, strict=True):
        low, high = _flat(mine), _flat(mine)
        # A parameter that is new or replaced has the same name in both.
        truth = _flat({name: own.get(name, 0 * mine[name]) for name in mine})
        dist.all_reduce(truth, group=group)
        dist.all_reduce(low, op=dist.ReduceOp.MIN, group=group)
        dist.all_reduce(high, op=dist.ReduceOp.MAX, group=group)
        truths.append(truth / dist.get_world_size(group))
        lows.append(low)
        highs.append(high)
    return truths, lows, highs


def _relative(
    left: Sequence[Tensor], right: Sequence[Tensor], whole: Sequence[Tensor]
) -> tuple[float, ...]:
    return tuple(
        float((a - b).abs().max() / _scale(c)) if len(c) else 0.0
        for a, b, c in zip(left, right, whole, strict=True)
    )


def _scale(truth: Tensor) -> Tensor:
    return truth.abs().max().clamp_min(1e-30)


def _wrong_parameters(
    gradients: Sequence[Mapping[str, Tensor]],
    truths: Sequence[Tensor],
    tolerance: float,
) -> tuple[str, ...]:
    """Parameters with wrong gradients."""
    names: dict[str, None] = {}
    for mine, truth in zip(gradients, truths, strict=True):
        if not mine:
            continue
        limit = tolerance * _scale(truth)
        parts = truth.split([len(value) for value in mine.values()])
        for (name, value), part in zip(mine.items(), parts):
            if ((value - part).abs() > limit).any():
                names[name] = None
    return tuple(names)[:_MAX_NAMES]


def _failed(
    error: Exception,
    model: nn.Module,
    rank: int,
    step: int,
    usages: tuple[StepUsage, ...],
) -> RankResult:
    text = str(error)
    outcome = next(
        (kind for part, kind in _MESSAGES.items() if part in text),
        RankOutcome.CRASHED,
    )
    place = ''
    if outcome is RankOutcome.CRASHED:
        inside = ' > '.join(modules_of_error(error, model))
        place = ', '.join(filter(None, (inside, error_place(error))))
    return RankResult(
        rank=rank,
        outcome=outcome,
        step=max(step, 0),
        usages=usages,
        error=f'{type(error).__name__}: {text}',
        place=place,
    )


# What DDP says in a process, and what was predicted for it.
_OUTCOMES = {
    RankOutcome.UNFINISHED: Outcome.UNFINISHED,
    RankOutcome.READY_TWICE: Outcome.READY_TWICE,
    RankOutcome.GRAPH_CHANGED: Outcome.GRAPH_CHANGED,
    RankOutcome.UNEXPECTED: Outcome.UNEXPECTED,
    RankOutcome.REFUSED: Outcome.REFUSED,
}
Source = Callable[[int, int, int], tuple]


@dataclass(frozen=True)
class WorldResult:
    """What the processes did, and what was predicted for them.

    Attributes:
        agrees: Whether it is what was predicted; None without a prediction,
            as the model itself failed.
        observed: What happened: ``'ok'``, ``'unfinished'``,
            ``'ready_twice'``, ``'graph_changed'``, ``'unexpected'``,
            ``'refused'``, ``'diverged'``, ``'crashed'`` for an error of the
            model, or ``'hung'``.
        predicted: The same, from the steps of each process without a
            wrapper; more than one joined by ``' or '``.
        detail: What happened, in a sentence.
        difference: Largest difference of a gradient from the true mean, as a
            part of the largest gradient; 0.0 after an error.
        world: How many processes.
    """

    agrees: bool | None
    observed: str
    predicted: str
    detail: str
    difference: float
    world: int


def run_world(
    source: Source,
    settings: SyncSettings,
    *,
    world: int = 2,
    steps: int = 3,
    time_limit: float = 300.0,
    tolerance: float = 1e-3,
) -> WorldResult:
    """Train for a few steps in new processes on this machine's CPU.

    They use Gloo and a file to meet, so no port has to be free, and they are
    ended when the time is over. Weights are not changed, batches differ
    between steps and processes.

    Args:
        source: A function of rank, number of processes and number of steps
            that returns the model, a ``BaseModel``, a batch for each
            step, and, if it has a backward of its own, the optimizer
            wrapper. It is sent to the processes, so it must be found by its
            module and name.
        settings: Of DDP.
        world: How many processes, at least 2.
        steps: How many steps, at least 2.
        time_limit: Of everything, in seconds.
        tolerance: Largest difference of a gradient that is none, as a part
            of the largest gradient of the step.

    Returns:
        What happened.

    Raises:
        TypeError: If ``source`` cannot be sent to another process.
        ValueError: If ``world``, ``steps`` or ``time_limit`` is too small.
    """
    for name, value, least in (('world', world, 2), ('steps', steps, 2)):
        if value < least:
            raise ValueError(f'{name} must be at least {least}, got {value}')
    if time_limit <= 0:
        raise ValueError(f'time_limit must be positive, got {time_limit}')
    try:
        pickle.dumps(source)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise TypeError(
            'source must be a function at the top level of a module, got '
            f'{source!r}: {error}'
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        job = _Job(
            source, settings, world, steps, time_limit, tolerance, time.time()
        )
        ranks = _run(job, Path(folder))
    return compare_ranks(ranks, settings, tolerance)


@dataclass(frozen=True)
class _Job:
    """What the processes are to do."""

    source: Source
    settings: SyncSettings
    world: int
    steps: int
    time_limit: float
    tolerance: float
    started: float


def _run(job: _Job, folder: Path) -> list[RankResult]:
    context = multiprocessing.get_context('spawn')
    processes = [
        context.Process(target=_main, args=(job, rank, folder), daemon=False)
        for rank in range(job.world)
    ]
    end = time.monotonic() + job.time_limit
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(end - time.monotonic(), 0))
    finally:
        _end(processes)
    return [_read(folder, rank, job) for rank in range(job.world)]


def _end(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()


def _read(folder: Path, rank: int, job: _Job) -> RankResult:
    path = folder / f'{rank}.pkl'
    if path.exists():
        return pickle.loads(path.read_bytes())
    error = f'no result within {job.time_limit:g} s'
    trace = folder / f'{rank}.trace'
    if trace.exists():
        # The main thread comes last, its innermost call first.
        thread = trace.read_text().rpartition('Thread 0x')[2].splitlines()
        calls = [line.split('File ')[1] for line in thread if 'File ' in line]
        if calls:
            error += f'; it was at {" < ".join(calls[:3])}'
    return RankResult(rank, RankOutcome.HUNG, error=error)


def _main(job: _Job, rank: int, folder: Path) -> None:
    """What a process does."""
    watch_parent()
    with open(folder / f'{rank}.trace', 'w') as trace:
        left = job.started + job.time_limit - time.time()
        faulthandler.dump_traceback_later(max(0.9 * left, 0.1), file=trace)
        _train(job, rank, folder)


def _train(job: _Job, rank: int, folder: Path) -> None:
    torch.set_num_threads(max((os.cpu_count() or 1) // job.world, 1))
    torch.manual_seed(0)
    dist.init_process_group(
        'gloo',
        f'file://{folder}/store',
        rank=rank,
        world_size=job.world,
        timeout=timedelta(seconds=job.time_limit),
    )
    failed: list[Exception] = []
    with Contained(failed.append):
        model, batches, *optim = job.source(rank, job.world, job.steps)
        result = run_rank(model, batches, job.settings, job.tolerance, *optim)
    for error in failed:
        result = RankResult(
            rank,
            RankOutcome.CRASHED,
            error=f'{type(error).__name__}: {error}',
            place=code_place(error),
        )
    part = folder / f'{rank}.part'
    part.write_bytes(pickle.dumps(result))
    part.rename(folder / f'{rank}.pkl')
    if result.outcome is RankOutcome.OK:
        dist.destroy_process_group()
    # A process with an error ends here, which lets the others go on.
    os._exit(0)


def run_world_config(
    config: str,
    cfg_options: Mapping[str, Any] | None = None,
    *,
    kinds: Sequence[str] = ('normal',),
    steps: int = 2,
    world: int = 2,
    batch_size: int = 2,
    settings: SyncSettings | None = None,
    time_limit: float = 300.0,
) -> WorldResult:
    """Train the model of a config in new processes, see :func:`run_world`.

    Args:
        config: The file.
        cfg_options: Settings to put over it.
        kinds: Of batches. They take turns, and each process is one further
            than the one before, so that different kinds meet in a step.
        steps: As of :func:`run_world`; at least as many as there are kinds
            are run.
        world: As of :func:`run_world`.
        batch_size: Samples of a batch.
        settings: Of DDP; None for those of the config.
        time_limit: As of :func:`run_world`.

    Returns:
        What happened.
    """
    options = dict(cfg_options or {}) or None
    if settings is None:
        settings = current_settings(read_config(config, cfg_options=options))
    source = _ConfigSource(config, options, tuple(kinds), batch_size)
    return run_world(
        source,
        settings,
        world=world,
        steps=max(steps, len(kinds)),
        time_limit=time_limit,
    )


@dataclass(frozen=True)
class _ConfigSource:
    """Builds a config's model and batches in a process of its own."""

    config: str
    cfg_options: dict[str, Any] | None
    kinds: tuple[str, ...]
    batch_size: int

    def __call__(self, rank: int, world: int, steps: int) -> tuple:
        # These bring the host packages along.
        from .batches.making import make_batches
        from .build import build_for_preflight

        cfg = read_config(self.config, cfg_options=self.cfg_options)
        with careful_readers(cfg.get('trust_checkpoint') is True):
            built = build_for_preflight(cfg)
            made = make_batches(
                built,
                self.kinds,
                steps=steps,
                batch_size=self.batch_size,
                seed=rank,
            )
        turns = [list(batches) for batches in made.values()]
        batches = [
            turns[(step + rank) % len(turns)][step] for step in range(steps)
        ]
        return built.model, batches, built.optim_wrapper


def compare_ranks(
    ranks: Sequence[RankResult],
    settings: SyncSettings,
    tolerance: float = 1e-3,
) -> WorldResult:
    """Compare what processes did with what was predicted."""
    predictions = tuple(
        predict_failures(
            rank.usages,
            find_unused_parameters=settings.find_unused_parameters,
            static_graph=settings.static_graph,
        )
        for rank in ranks
        if rank.usages
    )
    if len(predictions) < len(ranks) or any(
        rank.outcome is RankOutcome.CRASHED for rank in ranks
    ):
        predictions = ()
    difference = max(
        (max((*r.differences, *r.spreads), default=0.0) for r in ranks),
        default=0.0,
    )
    diverged = difference > tolerance
    observed, detail = _observed(ranks, diverged, difference)
    return WorldResult(
        agrees=_agree(ranks, predictions, diverged) if predictions else None,
        observed=observed,
        predicted=_predicted(predictions),
        detail=detail,
        difference=difference,
        world=len(ranks),
    )


def _predicted(predictions: Sequence[Sequence[Prediction]]) -> str:
    firsts = [failures[0] for failures in predictions if failures]
    names = [prediction.outcome.name.lower() for prediction in firsts]
    return ' or '.join(dict.fromkeys(names)) or 'ok' * bool(predictions)


def _observed(
    ranks: Sequence[RankResult], diverged: bool, difference: float
) -> tuple[str, str]:
    """What happened, in a word and in a sentence."""
    failed = [r for r in ranks if r.outcome is RankOutcome.CRASHED]
    failed += [r for r in ranks if r.outcome in _OUTCOMES]
    if failed:
        first = failed[0]
        at = f' ({first.place})' if first.place else ''
        text = f'rank {first.rank}, step {first.step + 1}: {first.error}{at}'
        return first.outcome.name.lower(), text
    waiting = [r for r in ranks if r.outcome is not RankOutcome.OK]
    if waiting:
        return 'hung', '; '.join(f'rank {r.rank}: {r.error}' for r in waiting)
    if diverged:
        names = ', '.join(dict.fromkeys(n for r in ranks for n in r.names))
        return 'diverged', (
            'no error, but gradients differ from the true mean by '
            f'{difference:.2g} of the largest: {names}'
        )
    return 'ok', (
        f'all gradients are the true mean, up to {difference:.2g} of the '
        'largest'
    )


def _agree(
    ranks: Sequence[RankResult],
    predictions: Sequence[Sequence[Prediction]],
    diverged: bool,
) -> bool:
    """Whether every process did what was predicted, or waited for others.

    What is silent may be followed by an error.
    """
    errors = [
        next((p for p in failures if p.outcome is not Outcome.DIVERGED), None)
        for failures in predictions
    ]
    if not any(errors):
        ended = all(rank.outcome is RankOutcome.OK for rank in ranks)
        return ended and diverged == any(predictions)
    failed = False
    for rank, error in zip(ranks, errors, strict=True):
        outcome = _OUTCOMES.get(rank.outcome)
        if outcome is None:
            continue
        late = outcome is Outcome.UNFINISHED
        if error is None or (error.outcome, error.step + late) != (
            outcome,
            rank.step,
        ):
            return False
        failed = True
    return failed
