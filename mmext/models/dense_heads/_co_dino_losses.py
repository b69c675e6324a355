"""Losses of decoder queries that come with their target.

Shape letters: B images, P queries, K classes, D decoder layers.
"""

from collections.abc import Sequence

import torch
from mmdet.models.losses import QualityFocalLoss
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy, bbox_overlaps
from mmdet.utils import reduce_mean
from torch import Tensor

from ..utils.co_positives import CoQueries

__all__ = ['co_head_losses', 'named_co_losses', 'positives_per_rank']


def positives_per_rank(num_positives: int, like: Tensor) -> float:
    """Mean number of positives over the ranks, at least 1."""
    mean = reduce_mean(like.new_tensor([float(num_positives)]))
    return max(mean.item(), 1.0)


def co_head_losses(
    head: torch.nn.Module,
    scores: Tensor,
    boxes: Tensor,
    queries: CoQueries,
    img_shapes: Sequence[tuple[int, int]],
) -> list[dict]:
    """Losses of one auxiliary head's queries in every decoder layer.

    Args:
        head: Gives ``loss_cls``, ``loss_bbox``, ``loss_iou``,
            ``num_classes`` and ``sync_cls_avg_factor``.
        scores: ``(D, B, P, K)`` float32 logits.
        boxes: ``(D, B, P, 4)`` float32, cx cy w h, normalised.
        queries: The queries and their targets.
        img_shapes: Height and width of each image, for the IoU loss.

    Returns:
        Per layer ``loss_cls``, divided by the number of positives (its mean
        over the ranks with ``sync_cls_avg_factor``), and ``loss_bbox`` and
        ``loss_iou``, divided by the mean over the ranks; each divisor is at
        least 1. A filler has weight 0; without positives the box losses are 0
        and stay in the graph.
    """
    box_avg = positives_per_rank(queries.num_positives, boxes)
    cls_avg = (
        box_avg
        if head.sync_cls_avg_factor
        else max(float(queries.num_positives), 1.0)
    )
    scale = (
        torch.stack(
            [
                boxes.new_tensor([width, height, width, height])
                for height, width in img_shapes
            ]
        )[:, None]
        .expand_as(queries.boxes)
        .reshape(-1, 4)
    )
    labels = queries.labels.reshape(-1)
    label_weights = queries.label_weights.reshape(-1)
    box_weights = queries.box_weights.reshape(-1, 4)
    targets = queries.targets.reshape(-1, 4)
    target_xyxy = bbox_cxcywh_to_xyxy(targets)
    layers = []
    for score, box in zip(scores.flatten(1, 2), boxes.flatten(1, 2)):
        box_xyxy = bbox_cxcywh_to_xyxy(box)
        target = labels
        if isinstance(head.loss_cls, QualityFocalLoss):
            target = (
                labels,
                _iou_targets(
                    box_xyxy.detach(), target_xyxy, labels, head.num_classes
                ),
            )
        layers.append(
            {
                'loss_cls': head.loss_cls(
                    score, target, label_weights, avg_factor=cls_avg
                ),
                'loss_bbox': head.loss_bbox(
                    box, targets, box_weights, avg_factor=box_avg
                ),
                'loss_iou': head.loss_iou(
                    box_xyxy * scale,
                    target_xyxy * scale,
                    box_weights,
                    avg_factor=box_avg,
                ),
            }
        )
    return layers


def named_co_losses(
    head: torch.nn.Module,
    scores: Tensor,
    boxes: Tensor,
    co_queries: Sequence[CoQueries],
    img_shapes: Sequence[tuple[int, int]],
) -> dict[str, Tensor]:
    """Losses of all auxiliary heads' queries, named as the port does.

    Args:
        head: As in :func:`co_head_losses`.
        scores: ``(D, B, P, K)`` float32 logits, ``P`` of all heads together.
        boxes: ``(D, B, P, 4)`` float32, cx cy w h, normalised.
        co_queries: Queries and targets of each head, in order.
        img_shapes: Height and width of each image, for the IoU loss.

    Returns:
        ``loss_cls_aux<i>``, ``loss_bbox_aux<i>`` and ``loss_iou_aux<i>`` of
        head ``i`` in the last layer, with prefix ``d<layer>.`` in the others.
    """
    losses = {}
    sizes = [queries.boxes.shape[1] for queries in co_queries]
    for i, (queries, score, box) in enumerate(
        zip(co_queries, scores.split(sizes, 2), boxes.split(sizes, 2))
    ):
        layers = co_head_losses(head, score, box, queries, img_shapes)
        for depth, layer in enumerate(layers):
            last = depth == len(layers) - 1
            prefix = '' if last else f'd{depth}.'
            losses.update(
                {
                    f'{prefix}{name}_aux{i}': value
                    for name, value in layer.items()
                }
            )
    return losses


def _iou_targets(
    boxes: Tensor, targets: Tensor, labels: Tensor, num_classes: int
) -> Tensor:
    """IoU of the positives with their targets, 0 for the others."""
    positive = (labels >= 0) & (labels < num_classes)
    iou = bbox_overlaps(boxes, targets, is_aligned=True)
    return torch.where(positive, iou, torch.zeros_like(iou))
