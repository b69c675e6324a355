"""CO-DINO under DDP: two processes on gloo stay one model."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers.tiny_co_dino import build_tiny, make_batch
from helpers.toy_ranks import run_on_ranks
from mmengine.optim import OptimWrapper

from mmext.engine.distributed import DistributedDataParallel

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group('processes')]

NUM_STEPS = 20
SIZES = ((96, 128), (80, 96))
# Step -> boxes per image on rank 0 and rank 1; other steps are ordinary.
SPECIAL = {
    3: ((0, 0), (3, 2)),
    6: ((2, 1), (0, 0)),
    9: ((0, 0), (0, 0)),
    12: ((0, 2), (40, 0)),
}
NO_PROPOSALS = (5, 9, 15)


def _checksum(model: torch.nn.Module) -> list[float]:
    """Two sums over all parameters and buffers that order and value enter."""
    flat = torch.cat(
        [
            value.detach().double().flatten()
            for value in (*model.parameters(), *model.buffers())
        ]
    )
    ramp = torch.linspace(1, 2, len(flat), dtype=torch.float64)
    return [float(flat.sum()), float((flat * ramp).sum())]


def _train(out: Path, with_cp: bool, base: str) -> None:
    """Train and write losses and checksums of every step."""
    rank = dist.get_rank()
    model = build_tiny(
        seed=rank,  # DDP itself must make the replicas equal.
        base=base,
        backbone={'with_cp': with_cp},
        query_head={
            'transformer': {
                'encoder': {'with_cp': with_cp},
                'decoder': {'with_cp': with_cp},
            }
        },
    )
    wrapped = DistributedDataParallel(model)
    optim = OptimWrapper(torch.optim.AdamW(wrapped.parameters(), lr=1e-4))
    detector = wrapped.module
    wrapped.train()
    history = []
    for step in range(NUM_STEPS):
        boxes = SPECIAL.get(step, ((3, 2), (2, 4)))[rank]
        quiet = step in NO_PROPOSALS
        detector.train_cfg.rpn_proposal.min_bbox_size = 10_000 if quiet else 0
        for head in detector.roi_head:
            head.bbox_sampler.add_gt_as_proposals = not quiet
        torch.manual_seed(1000 * step + rank)
        losses = wrapped.train_step(
            make_batch(boxes, SIZES, seed=100 * step + rank), optim
        )
        history.append(
            {'loss': float(losses['loss']), 'checksum': _checksum(detector)}
        )
    Path(f'{out}.{rank}.json').write_text(json.dumps(history))


def _run(
    out: Path, with_cp: bool, base: str = '5scale_r50'
) -> list[list[dict]]:
    out = out / f'{base}_{with_cp}'
    ranks = run_on_ranks(partial(_train, out, with_cp, base), 2, out)
    assert ranks.wait(end_others=True) == [0, 0], ranks.output()
    return [
        json.loads(Path(f'{out}.{rank}.json').read_text()) for rank in range(2)
    ]


@pytest.fixture(scope='module')
def histories(tmp_path_factory: pytest.TempPathFactory) -> dict:
    out = tmp_path_factory.mktemp('ddp')
    return {with_cp: _run(out, with_cp) for with_cp in (False, True)}


@pytest.mark.parametrize('kind', [False, True, 'masks'])
def test_replicas_stay_identical(histories, kind, tmp_path) -> None:
    if kind == 'masks':
        first, second = _run(tmp_path, False, '5scale_r50_instance')
    else:
        first, second = histories[kind]
    assert len(first) == NUM_STEPS
    for step, (a, b) in enumerate(zip(first, second)):
        assert a['checksum'] == b['checksum'], f'step {step}'
    # They train: the model moves at every step, and ranks see other data.
    sums = [entry['checksum'][1] for entry in first]
    assert len(set(sums)) == NUM_STEPS
    assert [e['loss'] for e in first] != [e['loss'] for e in second]


def test_losses_are_finite_in_every_kind_of_batch(histories: dict) -> None:
    for history in histories[False]:
        for entry in history:
            assert torch.isfinite(torch.tensor(entry['loss']))


def test_checkpointing_gives_the_same_losses(histories: dict) -> None:
    for plain, checkpointed in zip(histories[False], histories[True]):
        for a, b in zip(plain, checkpointed):
            assert b['loss'] == pytest.approx(a['loss'], rel=1e-5)
