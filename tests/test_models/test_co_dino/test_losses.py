"""Losses of auxiliary queries against mmdet's for given assignments."""

import pytest
import torch
from mmdet.models.losses import FocalLoss, GIoULoss, L1Loss, QualityFocalLoss
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy, bbox_overlaps
from torch import nn

from mmext.models.co_dino.losses import (
    QueryLogits,
    co_head_losses,
    positives_per_rank,
    recorded_calls,
    replayed_losses,
)
from mmext.models.co_dino.positives import CoPositives, make_co_queries

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


CLASS_EMBED_LOSSES_K = 3


def make_logits(generator, num_dn=2, num_co=(4,)):
    """Two layers, two images, five matching queries."""

    def draw(*shape):
        value = torch.randn(*shape, CLASS_EMBED_LOSSES_K, generator=generator)
        return value.requires_grad_()

    return QueryLogits(
        draw(2, 2, 5),
        draw(2, 5),
        draw(2, 2, num_dn),
        [draw(2, 2, count) for count in num_co],
    )


def call_all(loss, logits, generator):
    """Call a loss on logits of zeros, as a head does; returns the targets."""
    parts = [*logits.matching, logits.proposals]
    parts += [part for part in logits.denoising if part.numel()]
    for layers in logits.co_heads:
        parts += [*layers]
    targets = []
    for i, part in enumerate(parts):
        count = part[..., 0].numel()
        labels = torch.randint(
            CLASS_EMBED_LOSSES_K + 1, (count,), generator=generator
        )
        scores = torch.rand(count, generator=generator) * (
            labels < CLASS_EMBED_LOSSES_K
        )
        weights = torch.rand(count, generator=generator)
        targets.append(((labels, scores), weights, i + 1.5))
        loss(
            torch.zeros(count, CLASS_EMBED_LOSSES_K),
            *targets[-1][:2],
            avg_factor=i + 1.5,
        )
    return parts, targets


def test_same_targets_weights_and_factors(generator):
    loss = QualityFocalLoss(use_sigmoid=True, loss_weight=2.0)
    logits = make_logits(generator)
    with recorded_calls(loss) as calls:
        parts, targets = call_all(loss, logits, generator)
    losses = replayed_losses(loss, calls, logits, 0.25)
    assert list(losses) == [
        'd0.loss_class_embed',
        'loss_class_embed',
        'enc_loss_class_embed',
        'd0.dn_loss_class_embed',
        'dn_loss_class_embed',
        'd0.loss_class_embed_aux0',
        'loss_class_embed_aux0',
    ]
    for value, part, (target, weight, factor) in zip(
        losses.values(), parts, targets
    ):
        labels, scores = target
        probability = part.reshape(-1, CLASS_EMBED_LOSSES_K).sigmoid()
        wanted = torch.zeros_like(probability)
        found = labels < CLASS_EMBED_LOSSES_K
        wanted[found, labels[found]] = scores[found]
        entropy = -(
            wanted * probability.log() + (1 - wanted) * (1 - probability).log()
        )
        each = entropy * (wanted - probability).abs().square()
        expected = (each.sum(1) * weight).sum() / factor * 2.0 * 0.25
        torch.testing.assert_close(value, expected)


def test_nothing_is_recorded_afterwards(generator):
    loss = FocalLoss(use_sigmoid=True)
    labels = torch.tensor([0, CLASS_EMBED_LOSSES_K])
    with recorded_calls(loss) as calls:
        loss(torch.zeros(2, CLASS_EMBED_LOSSES_K), labels)
    loss(torch.zeros(2, CLASS_EMBED_LOSSES_K), labels)
    assert len(calls) == 1

    def fail():
        with recorded_calls(loss):
            raise KeyError('x')

    with pytest.raises(KeyError, match='x'):
        fail()
    assert not loss._forward_hooks


def test_limit_no_denoising_and_no_co_heads(generator):
    loss = QualityFocalLoss(use_sigmoid=True)
    logits = make_logits(generator, num_dn=0, num_co=())
    with recorded_calls(loss) as calls:
        call_all(loss, logits, generator)
    losses = replayed_losses(loss, calls, logits, 1.0)
    assert len(calls) == 3
    assert float(losses['dn_loss_class_embed'].detach()) == 0
    sum(losses.values()).backward()
    assert logits.denoising.grad is not None


@pytest.mark.parametrize(
    ('change', 'match'),
    [
        (lambda calls: calls[:-1], 'for loss_class_embed_aux0, got no call'),
        (lambda calls: calls[::-1], 'for d0.loss_class_embed, got 8'),
        (lambda calls: calls + calls[:1], 'called 7 times, got 8'),
    ],
)
def test_rejects_calls_of_another_host(generator, change, match):
    loss = QualityFocalLoss(use_sigmoid=True)
    logits = make_logits(generator)
    with recorded_calls(loss) as calls:
        call_all(loss, logits, generator)
    with pytest.raises(RuntimeError, match=match):
        replayed_losses(loss, change(list(calls)), logits, 1.0)
