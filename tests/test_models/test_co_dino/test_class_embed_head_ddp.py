"""mmext.CoDINOClassEmbedHead in two processes, nothing left unused."""

import json
from pathlib import Path

import pytest
import torch
from helpers.tiny_class_embed import MODES, build
from helpers.tiny_co_dino import make_batch
from helpers.toy_ranks import run_on_ranks
from mmengine.optim import OptimWrapper
from torch import distributed as dist

from mmext.engine.distributed import DistributedDataParallel

# Boxes per image on rank 0 and rank 1, and whether the RPN proposes.
STEPS = (
    ((3, 2), (2, 4), True),
    ((0, 0), (3, 2), True),
    ((2, 1), (0, 0), True),
    ((0, 0), (0, 0), True),
    ((3, 2), (1, 0), False),
    ((0, 0), (0, 0), False),
    ((0, 2), (12, 0), True),
)
SIZES = ((64, 96), (80, 64))


def checksum(model: torch.nn.Module) -> list[float]:
    """Two sums over all that a model holds; order and value enter."""
    flat = torch.cat(
        [value.double().flatten() for value in model.state_dict().values()]
    )
    ramp = torch.linspace(1, 2, len(flat), dtype=torch.float64)
    return [float(flat.sum()), float((flat * ramp).sum())]


def train(out: Path, mode: str, with_cp: bool) -> None:
    """A few steps; writes losses and checksums."""
    rank = dist.get_rank()
    part = {'with_cp': with_cp}
    model = build(
        MODES[mode],
        seed=rank,  # DDP itself must make the replicas equal.
        query_head={'transformer': {'encoder': part, 'decoder': part}},
    )
    wrapped = DistributedDataParallel(model, find_unused_parameters=False)
    optim = OptimWrapper(
        # Decay would move what gets no gradient.
        torch.optim.AdamW(wrapped.parameters(), lr=1e-3, weight_decay=0.0)
    )
    wrapped.train()
    history = []
    for step, (*boxes, proposes) in enumerate(STEPS):
        limit = 0 if proposes else 10_000
        model.train_cfg.rpn_proposal.min_bbox_size = limit
        for head in model.roi_head:
            head.bbox_sampler.add_gt_as_proposals = proposes
        torch.manual_seed(1000 * step + rank)
        batch = make_batch(boxes[rank], SIZES, seed=100 * step + rank)
        losses = wrapped.train_step(batch, optim)
        own = {
            name: getattr(model.query_head, name).detach().flatten()[:4]
            for name in ('class_embed', 'class_embeddings', 'class_bias')
        }
        history.append(
            {
                'loss': float(losses['loss']),
                'keys': sorted(losses),
                'checksum': checksum(model),
                'own': {name: value.tolist() for name, value in own.items()},
            }
        )
    Path(f'{out}.{rank}.json').write_text(json.dumps(history))


@pytest.mark.parametrize(
    ('mode', 'with_cp'),
    [
        ('classifier', True),
        pytest.param('auxiliary', False, marks=pytest.mark.slow),
        pytest.param('classifier', False, marks=pytest.mark.slow),
        pytest.param('auxiliary', True, marks=pytest.mark.slow),
        pytest.param('off', False, marks=pytest.mark.slow),
    ],
)
def test_replicas_stay_one_model(tmp_path, mode, with_cp):
    out = tmp_path / 'ranks'
    ranks = run_on_ranks(lambda: train(out, mode, with_cp), 2, out)
    assert ranks.wait(end_others=True) == [0, 0], ranks.output()
    first, second = (
        json.loads(Path(f'{out}.{rank}.json').read_text()) for rank in range(2)
    )
    assert len(first) == len(second) == len(STEPS)
    for step, (one, other) in enumerate(zip(first, second)):
        assert one['checksum'] == other['checksum'], f'step {step}'
        assert one['keys'] == other['keys'], f'step {step}'
        for entry in (one, other):
            assert torch.tensor(entry['loss']).isfinite()
    assert [e['loss'] for e in first] != [e['loss'] for e in second]
    # They train, and so does what the head adds, unless it is off.
    moved = first[0]['own'] != first[-1]['own']
    assert moved == (mode != 'off')
    assert len({entry['checksum'][1] for entry in first}) == len(STEPS)
