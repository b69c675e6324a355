"""Losses of decoder queries against formulas, and against mmdet's head."""

import pytest
import torch
from helpers.tiny_co_dino import build_tiny, make_samples
from mmdet.models import DINOHead
from mmdet.models.losses import GIoULoss, L1Loss, QualityFocalLoss
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy, bbox_overlaps
from torch import nn

from mmext.models.co_dino.losses import (
    box_losses,
    class_losses,
    join_targets,
    loss_divisors,
)
from mmext.models.co_dino.matching import read_ground_truth
from mmext.models.co_dino.positives import (
    UNUSED_LABEL,
    CoPositives,
    make_co_queries,
)
from mmext.models.co_dino.transformer import Proposals

QFL = QualityFocalLoss(use_sigmoid=True, beta=2.0)
K = 4
SHAPES = [(60, 80), (40, 50)]


SCALES = torch.tensor([[w, h, w, h] for h, w in SHAPES]).float()


def _losses(loss_cls: nn.Module, scores, boxes, queries) -> dict:
    """All losses of one group of queries."""
    groups = [queries.targets('{}')]
    (divisors,) = loss_divisors([groups], 0.0, average_classes=False)
    targets = join_targets(groups, boxes, divisors)
    return class_losses(loss_cls, scores, targets) | box_losses(
        L1Loss(loss_weight=5.0),
        GIoULoss(loss_weight=2.0),
        boxes,
        targets,
        SCALES,
    )


def _boxes(count: int, generator: torch.Generator) -> torch.Tensor:
    start = torch.rand(count, 2, generator=generator) * 20
    return torch.cat(
        (start, start + 5 + torch.rand(count, 2, generator=generator) * 15), 1
    )


def _queries(labels: tuple[list[int], list[int]]):
    generator = torch.Generator().manual_seed(0)
    pad = torch.nn.utils.rnn.pad_sequence
    boxes, targets = (
        pad([_boxes(len(part), generator) for part in labels], True)
        for _ in range(2)
    )
    given = [torch.tensor(part, dtype=torch.long) for part in labels]
    positives = CoPositives(boxes, pad(given, True, UNUSED_LABEL), targets)
    return make_co_queries([positives], SCALES, K, 20)[0]


def _predictions(queries, layers: int = 2):
    generator = torch.Generator().manual_seed(1)
    shape = (layers, *queries.labels.shape)
    scores = torch.randn(*shape, K, generator=generator, requires_grad=True)
    boxes = 0.2 + 0.5 * torch.rand(*shape, 4, generator=generator)
    return scores, boxes.requires_grad_()


LABELS = ([0, 3, 1, K, K, K, K, K, K, K, K], [2] + [K] * 12)


def test_matches_losses_written_out_per_box() -> None:
    queries = _queries(LABELS)
    scores, boxes = _predictions(queries)
    result = _losses(QFL, scores, boxes, queries)
    for depth, prefix in enumerate(('d0.', '')):
        losses = {
            name: result[prefix + name]
            for name in ('loss_cls', 'loss_bbox', 'loss_iou')
        }
        cls = l1 = iou = 0.0
        for i, (height, width) in enumerate(SHAPES):
            size = torch.tensor([width, height, width, height]).float()
            for j, label in enumerate(queries.labels[i]):
                target, box = queries.target_boxes[i, j], boxes[depth, i, j]
                quality = torch.zeros(K)
                xyxy = bbox_cxcywh_to_xyxy(torch.stack((box, target)))
                if label < K:
                    quality[label] = bbox_overlaps(
                        xyxy[:1].detach(), xyxy[1:]
                    )[0, 0]
                    l1 = l1 + 5 * (box - target).abs().sum()
                    giou = bbox_overlaps(
                        xyxy[:1] * size, xyxy[1:] * size, mode='giou'
                    )[0, 0]
                    iou = iou + 2 * (1 - giou)
                p = scores[depth, i, j].sigmoid()
                bce = nn.functional.binary_cross_entropy(
                    p, quality, reduction='none'
                )
                cls = cls + (bce * (p - quality).abs() ** 2).sum()
        assert float(queries.box_weights.sum()) == 4
        expected = {'loss_cls': cls, 'loss_bbox': l1, 'loss_iou': iou}
        for name, value in expected.items():
            torch.testing.assert_close(losses[name], value / 4, msg=name)
            grads = [
                torch.autograd.grad(
                    term,
                    (scores, boxes),
                    retain_graph=True,
                    allow_unused=True,
                    materialize_grads=True,
                )
                for term in (losses[name], value / 4)
            ]
            for ours, theirs in zip(*grads):
                torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


HEAD_LOSSES = {
    'quality': {'type': 'mmdet.QualityFocalLoss', 'loss_weight': 1.5},
    'beta': {'type': 'mmdet.QualityFocalLoss', 'beta': 1.5},
    'focal': {'type': 'mmdet.FocalLoss', 'loss_weight': 2.0},
    'softmax': {
        'type': 'mmdet.CrossEntropyLoss',
        'use_sigmoid': False,
    },
}


@pytest.mark.parametrize('num_boxes', [(3, 2), (0, 4), (0, 0)])
@pytest.mark.parametrize('name', HEAD_LOSSES)
def test_values_and_gradients_of_mmdets_head(name, num_boxes) -> None:
    """Matching, proposals and denoising of all layers, as of DINOHead."""
    head = build_tiny(
        query_head={'loss_cls': {'_delete_': True, **HEAD_LOSSES[name]}}
    ).query_head
    if name == 'softmax':
        # Background counts with a tenth, as mmdet sets it for its DETRHead.
        head.bg_cls_weight = 0.1
    samples = make_samples(num_boxes, ((60, 80), (40, 50)))
    truth = read_ground_truth(samples, head.num_classes)
    denoising = head.dn_generator(truth)
    generator = torch.Generator().manual_seed(2)
    count = denoising.references.shape[1]
    layers, width = 2, head.cls_out_channels
    scores = torch.randn(layers, 2, count + 8, width, generator=generator)
    boxes = torch.rand(layers, 2, count + 8, 4, generator=generator)
    proposals = Proposals(
        torch.randn(2, 8, width, generator=generator).requires_grad_(),
        torch.rand(2, 8, 4, generator=generator).requires_grad_(),
        torch.zeros(2, 8, 4),
        torch.zeros(2, 8, 32),
    )
    inputs = (
        scores.requires_grad_(),
        boxes.requires_grad_(),
        proposals.scores,
        proposals.boxes,
    )
    decoded, proposed, _ = head._targets(
        scores, boxes, proposals, denoising, [], truth, samples, None
    )
    losses = head._losses(scores, boxes, decoded, truth) | head._losses(
        proposals.scores[None], proposals.boxes[None], proposed, truth
    )
    expected = DINOHead.loss_by_feat(
        head,
        *inputs,
        [sample.gt_instances for sample in samples],
        [sample.metainfo for sample in samples],
        {
            'num_denoising_queries': count,
            'num_denoising_groups': denoising.num_groups,
        },
    )
    assert losses.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(losses[key], value.squeeze(), msg=key)
    grads = [
        torch.autograd.grad(sum(v.sum() for v in results.values()), inputs)
        for results in (losses, expected)
    ]
    for ours, theirs in zip(*grads):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
