"""Run many models on two real processes by the tool's own ``run_rank``."""

from collections.abc import Sequence
from pathlib import Path

from helpers.forked_pairs import Report, run_jobs
from helpers.preflight_nets import Spec, batch_of, build_net
from mmext.checks.ddp import SyncSettings
from mmext.checks.preflight.ranks import RankOutcome, RankResult, run_rank

NUM_STEPS = 3
Job = tuple[Spec, SyncSettings]


def run_job(job: Job, rank: int) -> Report:
    """What a rank tells of a model."""
    spec, settings = job
    batches = [batch_of(step, rank) for step in range(NUM_STEPS)]
    result = run_rank(build_net(spec), batches, settings, 1e-9)
    failed = result.outcome is not RankOutcome.OK
    return Report(result, ends=failed, failed=failed)


def run_pairs(jobs: Sequence[Job], folder: Path) -> list[list[RankResult]]:
    """Run models on two processes each.

    Args:
        jobs: Models and settings of DDP.
        folder: An empty one.

    Returns:
        What both ranks tell of each.
    """
    hung = RankOutcome.HUNG
    return [
        [
            result or RankResult(rank, hung, error='no report')
            for rank, result in enumerate(results)
        ]
        for results in run_jobs(run_job, jobs, folder)
    ]
