"""Every architecture with every balancer, on two processes and no flag."""

import itertools

import pytest
import torch
from helpers.forked_pairs import Report, run_jobs
from helpers.tiny_multi_task import make_config, make_samples
from helpers.toy_tasks import BALANCERS
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS

from mmext.engine.distributed import DistributedDataParallel
from mmext.engine.distributed.replicas import checksum

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group('processes')]

ARCHITECTURES = {
    'HardSharing': {},
    'MTAN': {},
    'MMoE': dict(num_experts=2, balance_weight=0.1),
    'CGC': dict(num_shared_experts=1),
}


def run_job(job, rank: int) -> Report:
    """Losses of two steps, and the checksum of the weights after them."""
    architecture, balancer = job
    options = dict(BALANCERS[balancer])
    if balancer == 'FixedWeights':
        options = dict(weights=dict(depth=0.5))
    torch.manual_seed(0)
    cfg = make_config(
        dict(type=f'mmext.{architecture}', **ARCHITECTURES[architecture]),
        dict(type=f'mmext.{balancer}', **options),
    )
    cfg['backbone']['out_indices'] = (3,)
    model = DistributedDataParallel(MODELS.build(cfg))
    optimizer = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.01))
    losses = [
        float(
            model.train_step(
                make_samples(2, seed=10 * step + rank), optimizer
            )['loss']
        )
        for step in range(2)
    ]
    sums = {
        name: str(checksum(parameter.detach()))
        for name, parameter in model.named_parameters()
    }
    return Report((losses, sums))


@pytest.mark.exhaustive
def test_two_steps(tmp_path):
    jobs = list(itertools.product(ARCHITECTURES, BALANCERS))
    results = run_jobs(run_job, jobs, tmp_path)
    assert len(results) == len(jobs) == 36
    for job, (first, second) in zip(jobs, results):
        assert first is not None, job
        assert second is not None, job
        assert first[1] == second[1], job
        losses = torch.tensor([first[0], second[0]])
        assert losses.isfinite().all(), job
        # The processes had different data.
        assert first[0] != second[0], job
