"""CO-DINO under DDP: two processes on gloo stay one model."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers import tiny_class_embed
from helpers.tiny_co_dino import build_tiny, make_batch
from helpers.toy_ranks import run_on_ranks
from mmengine.optim import OptimWrapper

from mmext.engine.distributed import DistributedDataParallel

pytestmark = pytest.mark.xdist_group('processes')

SIZES = ((96, 128), (80, 96))
# Boxes per image on rank 0 and rank 1, and whether the RPN proposes.
STEPS = (
    ((3, 2), (2, 4), True),
    ((0, 0), (3, 2), True),
    ((2, 1), (0, 0), True),
    ((0, 0), (0, 0), True),
    ((3, 2), (1, 0), False),
    ((0, 0), (0, 0), False),
    ((0, 2), (40, 0), True),
    ((3, 2), (2, 4), True),
)
CHECKPOINTED = {
    'backbone': {'with_cp': True},
    'query_head': {
        'transformer': {
            'encoder': {'with_cp': True},
            'decoder': {'with_cp': True},
        }
    },
}
KINDS = {
    'boxes': build_tiny,
    'boxes, checkpointed': partial(build_tiny, **CHECKPOINTED),
    'masks': partial(build_tiny, base='5scale_r50_instance'),
    'deformable, checkpointed': partial(
        build_tiny, base='co_deformable_detr_r50', **CHECKPOINTED
    ),
    'refined masks': partial(build_tiny, base='r18_small_instance_refine'),
    # With drop path.
    'ViT, checkpointed': partial(
        build_tiny, base='5scale_vit_l', **CHECKPOINTED
    ),
}
for _name, _mode in tiny_class_embed.MODES.items():
    KINDS[_name] = partial(tiny_class_embed.build, _mode)
    KINDS[f'{_name}, checkpointed'] = partial(KINDS[_name], **CHECKPOINTED)


def checksum(model: torch.nn.Module) -> list[float]:
    """Two sums over all that a model holds; order and value enter."""
    flat = torch.cat(
        [value.double().flatten() for value in model.state_dict().values()]
    )
    ramp = torch.linspace(1, 2, len(flat), dtype=torch.float64)
    return [float(flat.sum()), float((flat * ramp).sum())]


def train(out: Path, kind: str) -> None:
    """A few steps; writes losses and checksums."""
    rank = dist.get_rank()
    # DDP itself must make the replicas equal.
    model = KINDS[kind](seed=rank)
    wrapped = DistributedDataParallel(model)
    assert not wrapped.find_unused_parameters
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
        own = [
            getattr(model.query_head, name).detach().flatten()[:4].tolist()
            for name in ('class_embed', 'class_embeddings', 'class_bias')
            if hasattr(model.query_head, name)
        ]
        history.append(
            {
                'loss': float(losses['loss']),
                'keys': sorted(losses),
                'checksum': checksum(model),
                'own': own,
            }
        )
    Path(f'{out}.{rank}.json').write_text(json.dumps(history))


@pytest.fixture(scope='module')
def histories(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Of both ranks by kind, as far as they were asked for."""

    class Histories(dict):
        def __missing__(self, kind: str) -> list[list[dict]]:
            out = tmp_path_factory.mktemp('ddp') / 'out'
            ranks = run_on_ranks(partial(train, out, kind), 2, out)
            assert ranks.wait(end_others=True) == [0, 0], ranks.output()
            self[kind] = [
                json.loads(Path(f'{out}.{rank}.json').read_text())
                for rank in range(2)
            ]
            return self[kind]

    return Histories()


@pytest.mark.parametrize(
    'kind',
    [
        'classifier, checkpointed',
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in KINDS
            if kind not in ('classifier, checkpointed', 'off, checkpointed')
        ),
    ],
)
def test_replicas_stay_one_model(histories, kind):
    first, second = histories[kind]
    assert len(first) == len(second) == len(STEPS)
    for step, (one, other) in enumerate(zip(first, second)):
        assert one['checksum'] == other['checksum'], f'step {step}'
        assert one['keys'] == other['keys'], f'step {step}'
        for entry in (one, other):
            assert torch.tensor(entry['loss']).isfinite()
    # They train: the model moves at every step, and ranks see other data.
    assert [e['loss'] for e in first] != [e['loss'] for e in second]
    assert len({entry['checksum'][1] for entry in first}) == len(STEPS)
    # So does what the head adds, unless it is off.
    if first[0]['own']:
        assert (first[0]['own'] != first[-1]['own']) == (kind != 'off')


@pytest.mark.slow
def test_checkpointing_gives_the_same_losses(histories):
    pairs = zip(histories['boxes'], histories['boxes, checkpointed'])
    for plain, checkpointed in pairs:
        for a, b in zip(plain, checkpointed):
            assert b['loss'] == pytest.approx(a['loss'], rel=1e-5)
