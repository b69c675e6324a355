"""Losses of auxiliary queries against mmdet's for given assignments."""

import pytest
import torch
from mmdet.models.losses import (
    FocalLoss,
    GIoULoss,
    L1Loss,
    QualityFocalLoss,
)
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy, bbox_overlaps
from torch import nn

from mmext.models.dense_heads._co_dino_losses import (
    co_head_losses,
    positives_per_rank,
)
from mmext.models.utils.co_positives import CoPositives, make_co_queries

K = 4
SHAPES = [(60, 80), (40, 50)]


class _Head(nn.Module):
    def __init__(self, loss_cls: nn.Module) -> None:
        super().__init__()
        self.loss_cls = loss_cls
        self.loss_bbox = L1Loss(loss_weight=5.0)
        self.loss_iou = GIoULoss(loss_weight=2.0)
        self.num_classes = K
        self.sync_cls_avg_factor = False


def _boxes(count: int, generator: torch.Generator) -> torch.Tensor:
    start = torch.rand(count, 2, generator=generator) * 20
    return torch.cat(
        (start, start + 5 + torch.rand(count, 2, generator=generator) * 15), 1
    )


def _queries(labels: tuple[list[int], list[int]]):
    generator = torch.Generator().manual_seed(0)
    return make_co_queries(
        CoPositives(
            boxes=[_boxes(len(part), generator) for part in labels],
            labels=[torch.tensor(part, dtype=torch.long) for part in labels],
            targets=[_boxes(len(part), generator) for part in labels],
        ),
        SHAPES,
        K,
        20,
    )


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
    head = _Head(QualityFocalLoss(use_sigmoid=True, beta=2.0))
    layers = co_head_losses(head, scores, boxes, queries, SHAPES)
    for depth, losses in enumerate(layers):
        cls = l1 = iou = 0.0
        for i, (height, width) in enumerate(SHAPES):
            size = torch.tensor([width, height, width, height]).float()
            for j, label in enumerate(queries.labels[i]):
                target, box = queries.targets[i, j], boxes[depth, i, j]
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
        assert queries.num_positives == 4
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


def test_other_classification_losses_get_plain_labels() -> None:
    queries = _queries(LABELS)
    scores, boxes = _predictions(queries, layers=1)
    loss = FocalLoss(use_sigmoid=True)
    (losses,) = co_head_losses(_Head(loss), scores, boxes, queries, SHAPES)
    expected = loss(
        scores.flatten(0, 2), queries.labels.flatten(), avg_factor=4.0
    )
    torch.testing.assert_close(losses['loss_cls'], expected)


def test_fillers_weigh_nothing() -> None:
    queries = _queries(([0], []))
    assert queries.fillers is not None
    scores, boxes = _predictions(queries, layers=1)
    head = _Head(QualityFocalLoss(use_sigmoid=True, beta=2.0))
    (losses,) = co_head_losses(head, scores, boxes, queries, SHAPES)
    sum(losses.values()).backward()
    assert scores.grad[0][queries.fillers].abs().sum() == 0
    assert boxes.grad[0][queries.fillers].abs().sum() == 0
    assert scores.grad[0, 0, 0].abs().sum() > 0


def test_no_positive_gives_connected_zeros() -> None:
    queries = _queries(([], []))
    scores, boxes = _predictions(queries, layers=1)
    head = _Head(QualityFocalLoss(use_sigmoid=True, beta=2.0))
    (losses,) = co_head_losses(head, scores, boxes, queries, SHAPES)
    total = sum(losses.values())
    assert float(total) == 0
    total.backward()
    assert float(boxes.grad.abs().sum()) == 0
    assert float(scores.grad.abs().sum()) == 0


@pytest.mark.parametrize(('count', 'mean'), [(0, 1.0), (1, 1.0), (7, 7.0)])
def test_positives_per_rank_is_at_least_one(count: int, mean: float) -> None:
    assert positives_per_rank(count, torch.zeros(1)) == mean
