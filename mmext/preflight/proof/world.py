"""Ask real processes whether a verdict is true."""

import multiprocessing
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from ...apis.detector import read_config
from ..current_settings import current_settings
from ..sync_cures import SyncSettings
from ..sync_outcome import Outcome, Prediction, predict_outcome
from .rank_run import RankOutcome, RankResult, run_rank

__all__ = ['WorldResult', 'judge_ranks', 'run_world']

# What DDP says in a process, and what was predicted for it.
_OUTCOMES = {
    RankOutcome.UNFINISHED: Outcome.UNFINISHED,
    RankOutcome.READY_TWICE: Outcome.READY_TWICE,
    RankOutcome.GRAPH_CHANGED: Outcome.GRAPH_CHANGED,
}
Source = Callable[[int, int, int], tuple[nn.Module, Sequence[Any]]]


@dataclass(frozen=True)
class WorldResult:
    """What the processes did, and what was predicted for them.

    Attributes:
        agrees: Whether it is what was predicted; None without a prediction,
            as the model itself failed.
        observed: What happened: ``'ok'``, ``'unfinished'``,
            ``'ready_twice'``, ``'graph_changed'``, ``'diverged'``, or
            ``'crashed'`` for an error of the model, ``'hung'``.
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
            that returns the model, a ``BaseModel``, and a batch for each
            step. It is sent to the processes, so it must be found by its
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
        job = _Job(source, settings, world, steps, time_limit, tolerance)
        ranks = _run(job, Path(folder))
    return judge_ranks(ranks, settings, tolerance)


@dataclass(frozen=True)
class _Job:
    """What the processes are to do."""

    source: Source
    settings: SyncSettings
    world: int
    steps: int
    time_limit: float
    tolerance: float


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
    return RankResult(
        rank,
        RankOutcome.HUNG,
        error=f'no result within {job.time_limit:g} s',
    )


def _main(job: _Job, rank: int, folder: Path) -> None:
    """What a process does."""
    torch.set_num_threads(max((os.cpu_count() or 1) // job.world, 1))
    torch.manual_seed(0)
    dist.init_process_group(
        'gloo',
        f'file://{folder}/store',
        rank=rank,
        world_size=job.world,
        timeout=timedelta(seconds=job.time_limit),
    )
    model, batches = job.source(rank, job.world, job.steps)
    result = run_rank(model, batches, job.settings, job.tolerance)
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
        from ..batches import make_batches
        from ..building import build_for_preflight

        cfg = read_config(self.config, cfg_options=self.cfg_options)
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
        return built.model, batches


def judge_ranks(
    ranks: Sequence[RankResult],
    settings: SyncSettings,
    tolerance: float = 1e-3,
) -> WorldResult:
    """Compare what processes did with what was predicted.

    Args:
        ranks: What each process tells.
        settings: Of DDP.
        tolerance: As of :func:`run_world`.

    Returns:
        The result.
    """
    predictions = tuple(
        predict_outcome(
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


def _predicted(predictions: Sequence[Prediction]) -> str:
    names = [p.outcome.name.lower() for p in predictions]
    wrong = [name for name in names if name != 'ok']
    return ' or '.join(dict.fromkeys(wrong or names))


def _observed(
    ranks: Sequence[RankResult], diverged: bool, difference: float
) -> tuple[str, str]:
    """What happened, in a word and in a sentence."""
    told = [r for r in ranks if r.outcome is RankOutcome.CRASHED]
    told += [r for r in ranks if r.outcome in _OUTCOMES]
    if told:
        first = told[0]
        at = f' ({first.place})' if first.place else ''
        text = f'rank {first.rank}, step {first.step + 1}: {first.error}{at}'
        return first.outcome.name.lower(), text
    waiting = [r for r in ranks if r.outcome is not RankOutcome.OK]
    if waiting:
        first = waiting[0]
        return 'hung', f'rank {first.rank}: {first.error}'
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
    predictions: Sequence[Prediction],
    diverged: bool,
) -> bool:
    """Whether every process did what was predicted, or waited for others."""
    loud = [
        p
        for p in predictions
        if p.outcome not in (Outcome.OK, Outcome.DIVERGED)
    ]
    if not loud:
        silent = any(p.outcome is Outcome.DIVERGED for p in predictions)
        ended = all(rank.outcome is RankOutcome.OK for rank in ranks)
        return ended and diverged == silent
    heard = False
    for rank, prediction in zip(ranks, predictions, strict=True):
        outcome = _OUTCOMES.get(rank.outcome)
        if outcome is None:
            continue
        late = outcome is Outcome.UNFINISHED
        if (prediction.outcome, prediction.step + late) != (
            outcome,
            rank.step,
        ):
            return False
        heard = True
    return heard
