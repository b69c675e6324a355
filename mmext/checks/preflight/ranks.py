"""Train a config in real processes, and compare with what was predicted.

Each process builds the model and makes batches of its own, predicts what the
reducer is going to do with them, and trains on them by the config's own
runner: its process group, its model wrapper and its optimizer wrapper, over
Gloo on this machine's CPU. Data, hooks and schedulers of the config take no
part, as they may need what is not here.
"""

import copy
import faulthandler
import multiprocessing
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from ...utils.safe_load import careful_readers
from ..config import read_config
from ..ddp import Prediction, location_in, predict_failures
from ..findings import ErrorCatcher, frames_of
from .batches import make_batches
from .build import Built, build_for_preflight
from .dry_run.crashes import modules_of_error
from .dry_run.run import ConfigOptions, dry_run_model, wrappers_of

# Part of the message of an error of PyTorch's reducer, or of Gloo, and how
# the process ended: 'lost' is one that another process did not come to.
_MESSAGES = {
    'Expected to have finished reduction': 'unfinished',
    'Expected to mark a variable ready only once': 'ready_twice',
    'training graph has changed': 'graph_changed',
    'Expected sparse gradient': 'unexpected',
    'Expected variable to have sparse gradient': 'unexpected',
    'Cannot access storage of SparseTensorImpl': 'unexpected',
    'Encountered gradient which is undefined': 'unexpected',
    'Modules with uninitialized parameters': 'refused',
    "doesn't have any parameters that require a": 'refused',
    'Connection closed by peer': 'lost',
    'Connection reset by peer': 'lost',
    'Timed out waiting': 'lost',
}
# Largest difference of a gradient between processes that counts as none, as
# a part of the largest gradient.
_TOLERANCE = 1e-3
_MAX_NAMES = 20
_TAIL = 400


@dataclass(frozen=True)
class RankResult:
    """What one process reports."""

    rank: int
    # 'ok', one of _MESSAGES, or 'stopped' (a wrapper refuses a step),
    # 'crashed' (an error of the model), 'hung' (no answer in time), 'ended'
    # (the process died).
    outcome: str
    error: str = ''
    # All that was to go wrong; None if its steps fail alone.
    predicted: tuple[Prediction, ...] | None = None
    # Of gradients between processes, as a part of the largest, and where.
    difference: float = 0.0
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorldResult:
    """What the processes did, and what was predicted for them.

    Attributes:
        agrees: Whether it is what was predicted; None without a prediction,
            as the model itself failed.
        observed: What happened: ``'ok'``, ``'unfinished'``,
            ``'ready_twice'``, ``'graph_changed'``, ``'unexpected'``,
            ``'refused'``, ``'diverged'``, ``'stopped'`` where the wrapper
            refuses a step for which nothing was predicted, ``'crashed'`` for
            an error of the model, ``'ended'`` for a process that died, or
            ``'hung'``.
        predicted: The same, from the steps of each process without a
            wrapper; more than one joined by ``' or '``.
        detail: What happened, in a sentence.
        difference: Largest difference of a gradient between processes, as a
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
    config: str,
    cfg_options: Mapping[str, Any] | None = None,
    *,
    kinds: Sequence[str] = ('normal',),
    steps: int = 2,
    world: int = 2,
    batch_size: int = 2,
    time_limit: float = 300.0,
) -> WorldResult:
    """Train a config for a few steps in new processes on this machine's CPU.

    They use Gloo and a file to meet, so no port has to be free, and they are
    ended after ``time_limit`` seconds. Kinds of batches take turns, and each
    process is one further than the one before, so that different kinds meet
    in a step. At least as many steps as there are kinds are run, and one
    more, in which DDP notices what the last one has left out.
    """
    job = {
        'config': config,
        'cfg_options': dict(cfg_options or {}) or None,
        'kinds': tuple(kinds),
        'steps': max(steps, len(kinds)),
        'batch_size': batch_size,
        'world': world,
        'end': time.time() + time_limit,
    }
    context = multiprocessing.get_context('spawn')
    with tempfile.TemporaryDirectory(prefix='mmext_') as name:
        folder = Path(name)
        processes = [
            context.Process(target=_main, args=(rank, folder), kwargs=job)
            for rank in range(world)
        ]
        end = time.monotonic() + time_limit
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.join(max(end - time.monotonic(), 0))
        finally:
            codes = [process.exitcode for process in processes]
            for process in processes:
                process.kill()
                process.join()
        ranks = [
            _read(folder, rank, code, time_limit)
            for rank, code in enumerate(codes)
        ]
    return compare_ranks(ranks)


def _read(
    folder: Path, rank: int, code: int | None, time_limit: float
) -> RankResult:
    """What a process has written, or why it has not."""
    path = folder / f'{rank}.pkl'
    if path.exists():
        return pickle.loads(path.read_bytes())
    out, printed = folder / f'{rank}.out', ''
    if out.exists():
        printed = out.read_text(errors='replace')
    if code is not None:
        tail = ' '.join(printed[-_TAIL:].split())
        return RankResult(rank, 'ended', f'ended with code {code}; {tail}')
    error = f'no result within {time_limit:g} s'
    # Of the traceback the main thread comes last, its innermost call first.
    thread = printed.rpartition('Thread 0x')[2].splitlines()
    calls = [line.split('File ')[1] for line in thread if 'File ' in line]
    if calls:
        error += f'; it was at {" < ".join(calls[:3])}'
    return RankResult(rank, 'hung', error)


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _main(
    rank: int, folder: Path, *, world: int, end: float, **options: Any
) -> None:
    """What a process does, until ``end`` in seconds since the epoch."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    out = os.open(folder / f'{rank}.out', os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(out, number)
    numbers = {'RANK': rank, 'LOCAL_RANK': rank, 'WORLD_SIZE': world}
    os.environ |= {name: str(value) for name, value in numbers.items()}
    os.environ |= {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': '29500'}
    torch.set_num_threads(max((os.cpu_count() or 1) // world, 1))
    left = max(end - time.time(), 0.1)
    faulthandler.dump_traceback_later(0.9 * left)
    dist.init_process_group(
        'gloo',
        f'file://{folder}/store',
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=left),
    )
    result = _train(rank, folder, **options)
    part = folder / f'{rank}.part'
    part.write_bytes(pickle.dumps(result))
    part.rename(folder / f'{rank}.pkl')
    if result.outcome == 'ok':
        # No process may leave while another one is still in a collective.
        dist.barrier()
    # A process with an error ends here, which lets the others go on.
    os._exit(0)


def _train(
    rank: int,
    folder: Path,
    *,
    config: str,
    cfg_options: Mapping[str, Any] | None,
    kinds: Sequence[str],
    steps: int,
    batch_size: int,
) -> RankResult:
    built: Built | None = None
    predicted: tuple[Prediction, ...] | None = None
    spread = _Spread()
    failed: list[Exception] = []
    with ErrorCatcher(failed.append):
        cfg = read_config(config, cfg_options=cfg_options)
        with careful_readers(cfg.get('trust_checkpoint') is True):
            built = build_for_preflight(cfg)
            made = make_batches(
                built,
                kinds,
                steps=steps,
                batch_size=batch_size,
                seed=rank,
            )
        turns = list(made.values())
        batches = [
            turns[(step + rank) % len(turns)][step] for step in range(steps)
        ]
        predicted = _predict(built, batches)
        runner = _runner(built, [*batches, batches[-1]], folder)
        for wrapper in wrappers_of(runner.optim_wrapper):
            wrapper.optimizer.register_step_pre_hook(
                partial(spread.measure, built.model)
            )
        runner.train()
    for error in failed:
        text = ' '.join(f'{type(error).__name__}: {error}'.split())
        known = (kind for part, kind in _MESSAGES.items() if part in text)
        # Errors of our own wrapper say it themselves.
        outcome = getattr(error, 'rank_outcome', '') or next(known, 'crashed')
        if outcome == 'crashed':
            inside = modules_of_error(error, built.model) if built else ()
            location = [' > '.join(inside), location_in(frames_of(error))]
            text += f' ({", ".join(filter(None, location))})'
        return RankResult(rank, outcome, text, predicted)
    names = tuple(spread.names)[:_MAX_NAMES]
    return RankResult(rank, 'ok', '', predicted, spread.largest, names)


def _predict(
    built: Built, batches: Sequence[Any]
) -> tuple[Prediction, ...] | None:
    """What the reducer of this process is going to do with its batches."""
    model, optim_wrapper = copy.deepcopy((built.model, built.optim_wrapper))
    alone = dry_run_model(model, {'own': batches}, optim_wrapper=optim_wrapper)
    if alone.crashes:
        return None
    settings = ConfigOptions(built.cfg).current
    return predict_failures(
        alone.usages(),
        find_unused_parameters=settings.find_unused_parameters,
        static_graph=settings.static_graph,
    )


def _runner(built: Built, batches: Sequence[Any], folder: Path) -> Runner:
    """The runner of a config, for a model that is built and these batches."""
    cfg = Config(built.cfg.to_dict())
    cfg.device = 'cpu'
    kind = RUNNERS.get(cfg.get('runner_type') or 'Runner')
    if not issubclass(kind, Runner):
        # The strategy of a flexible one wants its devices.
        kind = Runner
    if kind.wrap_model is Runner.wrap_model:
        # It names a GPU to the wrapper, unless that is said.
        settings = ConfigOptions(cfg).current
        cfg.model_wrapper_cfg = {
            'type': 'MMDistributedDataParallel',
            'broadcast_buffers': False,
            'find_unused_parameters': settings.find_unused_parameters,
            'static_graph': settings.static_graph,
            **(cfg.get('model_wrapper_cfg') or {}),
            'device_ids': None,
        }
    optim_wrapper = built.optim_wrapper
    if optim_wrapper is None:
        parameters = [p for p in built.model.parameters() if p.requires_grad]
        optim_wrapper = OptimWrapper(torch.optim.SGD(parameters, 0.0))
    runner = kind(
        model=built.model,
        work_dir=str(folder / 'work_dir'),
        train_dataloader=DataLoader(
            batches, batch_size=None, collate_fn=copy.deepcopy
        ),
        train_cfg={'type': 'IterBasedTrainLoop', 'max_iters': len(batches)},
        optim_wrapper=optim_wrapper,
        default_hooks=dict.fromkeys(
            ('checkpoint', 'logger', 'param_scheduler', 'sampler_seed')
        ),
        launcher='pytorch',
        log_level='ERROR',
        default_scope=built.scope,
        cfg=cfg,
    )
    # All processes have built the same, and some weights are left out.
    runner._init_model_weights = lambda: None
    return runner


class _Spread:
    """How far gradients differ between the processes, before each step."""

    def __init__(self) -> None:
        self.largest = 0.0
        self.names: dict[str, None] = {}

    def measure(self, model: nn.Module, *_: Any) -> None:
        """To be called by all processes; gradients stay as they are."""
        gradients = {
            name: torch.zeros(parameter.numel())
            if parameter.grad is None
            else parameter.grad.detach().to_dense().flatten().float()
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        low = torch.cat([torch.zeros(0), *gradients.values()])
        high = low.clone()
        dist.all_reduce(low, op=dist.ReduceOp.MIN)
        dist.all_reduce(high, op=dist.ReduceOp.MAX)
        if not len(low):
            return
        largest = torch.maximum(low.abs(), high.abs()).max()
        spread = (high - low) / largest.clamp_min(1e-30)
        self.largest = max(self.largest, float(spread.max()))
        parts = spread.split([len(value) for value in gradients.values()])
        for name, part in zip(gradients, parts, strict=True):
            if (part > _TOLERANCE).any():
                self.names[name] = None


def compare_ranks(ranks: Sequence[RankResult]) -> WorldResult:
    """Compare what processes did with what was predicted."""
    crashed = [r for r in ranks if r.outcome in ('crashed', 'ended')]
    known = not crashed and all(r.predicted is not None for r in ranks)
    firsts = [r.predicted[0] for r in ranks if known and r.predicted]
    names = [prediction.outcome.name.lower() for prediction in firsts]
    names = list(dict.fromkeys(names))
    said = [r for r in ranks if r.outcome not in ('ok', 'lost', 'hung')]
    waiting = [r for r in ranks if r.outcome in ('lost', 'hung')]
    difference = max(r.difference for r in ranks)
    detail = (
        f'all gradients are the same, up to {difference:.2g} of the largest'
    )
    observed = 'ok'
    if said:
        first = (crashed or said)[0]
        observed = first.outcome
        detail = f'rank {first.rank}: {first.error}'
    elif waiting:
        observed = 'hung'
        detail = '; '.join(f'rank {r.rank}: {r.error}' for r in waiting)
    elif difference > _TOLERANCE:
        observed = 'diverged'
        different = ', '.join(dict.fromkeys(n for r in ranks for n in r.names))
        detail = (
            'no error, but gradients differ between the processes by '
            f'{difference:.2g} of the largest: {different}'
        )
    if observed == 'stopped' and names:
        # The wrapper notices all of them, and before PyTorch would.
        observed = names[0]
    # What is silent may be followed by an error.
    later = {p.outcome.name.lower() for r in ranks for p in r.predicted or ()}
    return WorldResult(
        agrees=observed in (later or {'ok'}) if known else None,
        observed=observed,
        predicted=' or '.join(names) or 'ok' * known,
        detail=detail,
        difference=difference,
        world=len(ranks),
    )
