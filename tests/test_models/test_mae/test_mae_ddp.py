"""MAE in real processes: equal to one, and to one that was never killed."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from helpers.tiny_mae import GRID, MAEWithHead, mae_config, tiny_mae
from helpers.toy_ranks import kill_and_resume, run_on_ranks, start_ranks
from mmengine.logging import MessageHub
from mmengine.optim import OptimWrapper
from torch.testing import assert_close

from mmext.engine.distributed import DistributedDataParallel
from mmext.models.mae.model import PatchMask, draw_noise, make_mask

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group('processes')]

STEPS = 3


def batch(step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(2, 3, 32, 32, generator=generator)


def model(with_cp: bool):
    torch.manual_seed(0)
    return tiny_mae(with_cp=with_cp)


def train(out, with_cp: bool) -> None:
    """Each rank its own pictures and masks; no flag of DDP is set."""
    rank = dist.get_rank()
    wrapped = DistributedDataParallel(model(with_cp))
    assert not wrapped.find_unused_parameters
    optim = OptimWrapper(torch.optim.SGD(wrapped.parameters(), lr=0.1))
    hub = MessageHub.get_instance('two processes')
    masks = []
    draw = wrapped.module.draw_mask

    def draw_and_note(count):
        masks.append(draw(count))
        return masks[-1]

    wrapped.module.draw_mask = draw_and_note
    for step in range(STEPS):
        hub.update_info('iter', step)
        data = dict(inputs=batch(step, rank))
        wrapped.train_step(data, optim)
    keep = torch.stack([mask.keep for mask in masks])
    torch.save((wrapped.module.state_dict(), keep), f'{out}.{rank}.pth')


def alone() -> tuple[dict, list[torch.Tensor]]:
    """The joined batches in this process, with the masks of both ranks."""
    mae = model(False)
    optim = torch.optim.SGD(mae.parameters(), lr=0.1)
    kept = []
    for step in range(STEPS):
        parts = [
            make_mask(draw_noise(2, 16, (0, 0, rank, step, 0)), GRID)
            for rank in range(2)
        ]
        mask = PatchMask(*(torch.cat(ids) for ids in zip(*parts)))
        images = torch.cat([batch(step, rank) for rank in range(2)])
        optim.zero_grad()
        mae.head.loss(mae._predict(images, mask), images, mask).backward()
        optim.step()
        kept.append(mask.keep)
    return mae.state_dict(), kept


@pytest.mark.parametrize('with_cp', [False, True])
def test_two_processes_equal_the_joined_batch(tmp_path, with_cp):
    out = tmp_path / 'out'
    ranks = run_on_ranks(partial(train, out, with_cp), 2, out)
    assert ranks.wait(end_others=True) == [0, 0], ranks.output()
    expected, kept = alone()
    states = []
    for rank in range(2):
        state, keep = torch.load(f'{out}.{rank}.pth')
        states.append(state)
        for step in range(STEPS):
            assert torch.equal(keep[step], kept[step].chunk(2)[rank])
        for key, value in state.items():
            assert_close(value, expected[key], rtol=1e-5, atol=1e-6, msg=key)
    assert all(torch.equal(states[0][key], states[1][key]) for key in expected)


@pytest.mark.parametrize('world_size', [1, 2])
def test_kill_9_and_resume(tmp_path, world_size):
    """The masks of the steps that are done again are the same, to the bit."""

    def start(args):
        ranks = start_ranks(args, world_size, tmp_path / 'out')
        return next(filter(None, ranks.wait(end_others=True)), 0)

    kill_and_resume(
        tmp_path,
        world_size,
        start,
        num_kills=1,
        model=dict(type='ToyMAE'),
        custom_imports=dict(
            imports=['helpers.toy_training', 'helpers.tiny_mae'],
            allow_failed_imports=False,
        ),
    )


def train_with_unused_parameters() -> None:
    cfg = mae_config()
    del cfg['type']
    wrapped = DistributedDataParallel(MAEWithHead(**cfg))
    optim = OptimWrapper(torch.optim.SGD(wrapped.parameters(), lr=0.1))
    for step in range(STEPS):
        data = dict(inputs=batch(step, dist.get_rank()))
        wrapped.train_step(data, optim)


def test_two_modules_that_mae_does_not_run_stop_ddp(tmp_path):
    """As the MAE that Lightly publishes stops (its issue 1775)."""
    ranks = run_on_ranks(train_with_unused_parameters, 2, tmp_path / 'log')
    assert any(ranks.wait(end_others=True))
    assert 'backbone.mask_token' in ranks.output() + ranks.output(1)
