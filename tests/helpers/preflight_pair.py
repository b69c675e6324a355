"""Run many models on two real processes, and predict what becomes of them.

Each is trained by MMEngine's wrapper, whose weights stay as they are, so that
its gradients can be compared with those of the model alone.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from mmengine.model import MMDistributedDataParallel
from torch import Tensor, nn
from torch import distributed as dist

from helpers.forked_pairs import Report, run_jobs
from helpers.preflight_nets import Spec, batch_of, build_net
from mmext.checks.ddp import (
    Outcome,
    Prediction,
    StepUsage,
    SyncSettings,
    predict_failures,
    record_step,
    run_training_forward,
)
from mmext.checks.preflight.ranks import _MESSAGES

NUM_STEPS = 3
TOLERANCE = 1e-9
Job = tuple[Spec, SyncSettings]


@dataclass(frozen=True)
class Rank:
    """What one process tells of a model.

    Attributes:
        outcome: ``'ok'``, or the name of an error of the reducer.
        step: In which it came; a missing gradient is noticed in the next.
        predicted: All that was to go wrong.
        difference: Between the gradients and the mean over both processes of
            what each would have alone, as a part of the largest.
    """

    outcome: str
    step: int = 0
    predicted: tuple[Prediction, ...] = ()
    difference: float = 0.0


@dataclass(frozen=True)
class Result:
    """What both processes did, and whether it is what was predicted."""

    observed: str
    agrees: bool


def _prepared(model: nn.Module, batch: dict, seed: int) -> dict:
    """A batch for a model whose gradients and random numbers are new."""
    model.zero_grad()
    torch.manual_seed(seed)
    return model.data_preprocessor(copy.deepcopy(batch), True)


def _step_alone(model: nn.Module, batch: dict, seed: int) -> StepUsage:
    data = _prepared(model, batch, seed)
    return record_step(
        model,
        lambda: run_training_forward(model, data),
        lambda outputs: model.parse_losses(outputs)[0],
    )


def _loss(wrapped: nn.Module, batch: dict, seed: int) -> Tensor:
    data = _prepared(wrapped.module, batch, seed)
    outputs = run_training_forward(wrapped, data)
    return wrapped.module.parse_losses(outputs)[0]


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: (torch.zeros_like(p) if p.grad is None else p.grad.to_dense())
        .detach()
        .flatten()
        .double()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def _train(spec: Spec, settings: SyncSettings, rank: int) -> Rank:
    batches = [batch_of(step, rank) for step in range(NUM_STEPS)]
    flags = {
        'find_unused_parameters': settings.find_unused_parameters,
        'static_graph': settings.static_graph,
    }
    model, alone = build_net(spec), build_net(spec)
    apart = dist.new_group(backend='gloo')
    usages, truths, largest = [], [], 0.0
    for step, batch in enumerate(batches):
        usages.append(_step_alone(alone, batch, step))
        truths.append(_gradients(alone))
    predicted = predict_failures(usages, **flags)
    step, gradients = 0, []
    try:
        wrapped = MMDistributedDataParallel(
            model, broadcast_buffers=False, **flags
        )
        for step, batch in enumerate(batches):
            _loss(wrapped, batch, step).backward()
            gradients.append(_gradients(model))
        step = NUM_STEPS
        # What is missing in a step, the next forward notices.
        _loss(wrapped, batches[-1], step)
        for mine, own in zip(gradients, truths, strict=True):
            # A parameter that is new or replaced has the same name in both.
            rows = [own.get(name, 0 * mine[name]) for name in mine]
            truth, given = torch.cat(rows), torch.cat([*mine.values()])
            dist.all_reduce(truth, group=apart)
            truth /= dist.get_world_size()
            error = (given - truth).abs().max()
            largest = max(
                largest, float(error / truth.abs().max().clamp_min(1e-30))
            )
    except RuntimeError as error:
        kinds = [
            kind for text, kind in _MESSAGES.items() if text in str(error)
        ]
        if not kinds:
            raise
        return Rank(kinds[0], step, predicted)
    return Rank('ok', step, predicted, largest)


def run_job(job: Job, rank: int) -> Report:
    """What a rank tells of a model."""
    result = _train(*job, rank)
    failed = result.outcome != 'ok'
    return Report(result, ends=failed, failed=failed)


def _agree(ranks: Sequence[Rank], diverged: bool) -> bool:
    """Whether both did what was predicted, or waited for the other one."""
    errors = [
        next(
            (p for p in r.predicted if p.outcome is not Outcome.DIVERGED), None
        )
        for r in ranks
    ]
    if not any(errors):
        silent = any(rank.predicted for rank in ranks)
        return all(r.outcome == 'ok' for r in ranks) and diverged == silent
    failed = False
    for rank, error in zip(ranks, errors, strict=True):
        if rank.outcome in ('ok', 'lost', 'hung'):
            continue
        late = rank.outcome == 'unfinished'
        expected = error and (error.outcome.name.lower(), error.step + late)
        if expected != (rank.outcome, rank.step):
            return False
        failed = True
    return failed


def run_pairs(jobs: Sequence[Job], folder: Path) -> list[Result]:
    """Run models with settings of DDP on two processes each."""
    results = []
    for reports in run_jobs(run_job, jobs, folder):
        ranks = [report or Rank('hung') for report in reports]
        diverged = max(rank.difference for rank in ranks) > TOLERANCE
        said = [r.outcome for r in ranks if r.outcome not in ('ok', 'lost')]
        observed = (said or ['diverged' if diverged else 'ok'])[0]
        results.append(Result(observed, _agree(ranks, diverged)))
    return results
