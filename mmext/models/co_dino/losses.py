"""Losses of all decoder queries, of all layers at once; one of them for LVIS.

Shape letters: D decoder layers, B images, T queries of all groups, P queries
of one group, G groups, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mmdet.models.losses import GIoULoss, QualityFocalLoss
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy
from mmdet.utils import reduce_mean
from torch import Tensor, nn
from torch.nn import functional as F

from ...registry import MODELS
from ..losses.reduction import read_class_weight

# A logit whose sigmoid is 0, and so is the loss of a negative.
_SURELY_NOT = -1e4


@dataclass(frozen=True)
class GroupTargets:
    """What the queries of one group should predict.

    A group is all queries with one purpose: to match, to denoise, or to
    learn from one auxiliary head. Its first dimension is ``D``, or 1 where
    all layers have the same targets.

    Attributes:
        name: Pattern of its losses' names, such as ``'dn_{}'``.
        labels: ``(D, B, P)`` int64, ``num_classes`` for a negative.
        label_weights: ``(D, B, P)`` float32.
        boxes: ``(D, B, P, 4)`` float32, cx cy w h, normalised; any finite
            box for a negative.
        box_weights: ``(D, B, P)`` float32, 1 for a positive, else 0.
        negatives: ``(D, B, P)`` float32, 1 for a negative that a softmax
            loss counts, with the weight of the background; None for none.
    """

    name: str
    labels: Tensor
    label_weights: Tensor
    boxes: Tensor
    box_weights: Tensor
    negatives: Tensor | None = None


@dataclass(frozen=True)
class LayerTargets:
    """What the queries of all groups should predict, next to each other.

    Attributes:
        names: Per group, as in :class:`GroupTargets`.
        sizes: Queries per group; their sum is ``T``.
        labels: ``(D, B, T)`` int64.
        label_weights: ``(D, B, T)`` float32.
        boxes: ``(D, B, T, 4)`` float32, cx cy w h, normalised.
        box_weights: ``(D, B, T)`` float32.
        qualities: ``(D, B, T)`` float32, IoU of a positive's predicted box
            with its target, 0 for a negative; without gradient.
        divisors: Two ``(D, G)``, what the sums of a group are divided by, of
            classes and of boxes.
    """

    names: Sequence[str]
    sizes: Sequence[int]
    labels: Tensor
    label_weights: Tensor
    boxes: Tensor
    box_weights: Tensor
    qualities: Tensor
    divisors: tuple[Tensor, Tensor]


def loss_divisors(
    parts: Sequence[Sequence[GroupTargets]],
    background_weight: float,
    *,
    average_classes: bool,
) -> list[tuple[Tensor, Tensor]]:
    """What the sums of each group are divided by.

    Box losses are divided by the mean number of positives over the ranks,
    classification losses by the weighted number of queries, each at least 1.
    All of them are averaged by one reduction.

    Args:
        parts: Groups that go together, as in :func:`join_targets`.
        background_weight: Weight of a negative, 0 for sigmoid losses.
        average_classes: Average the divisors of classification losses, too.

    Returns:
        Per part two ``(D, G)`` tensors, for classes and for boxes.
    """
    counts = []
    for groups in parts:
        positives = _counted([group.box_weights for group in groups])
        negatives = _counted(
            [
                torch.zeros_like(group.box_weights)
                if group.negatives is None
                else group.negatives
                for group in groups
            ]
        )
        counts.append(
            torch.stack((positives + background_weight * negatives, positives))
        )
    means = reduce_mean(torch.cat([count.flatten() for count in counts]))
    divisors = []
    for count, mean in zip(
        counts, means.split([count.numel() for count in counts])
    ):
        classes, positives = mean.view_as(count)
        classes = classes if average_classes else count[0]
        divisors.append((classes.clamp(min=1), positives.clamp(min=1)))
    return divisors


def _counted(weights: Sequence[Tensor]) -> Tensor:
    """Sums ``(D, G)`` of ``G`` tensors ``(D or 1, B, P)``."""
    depth = max(len(weight) for weight in weights)
    return torch.stack(
        [weight.sum((1, 2)).expand(depth) for weight in weights], 1
    )


def join_targets(
    groups: Sequence[GroupTargets],
    boxes: Tensor,
    divisors: tuple[Tensor, Tensor],
) -> LayerTargets:
    """Put the targets of all groups next to each other.

    Args:
        groups: ``G`` groups, in the order of the queries.
        boxes: ``(D, B, T, 4)`` float32, the predicted boxes.
        divisors: Two ``(D, G)``, from :func:`loss_divisors`.
    """
    depth = len(boxes)

    def joined(key: str) -> Tensor:
        parts = [getattr(group, key) for group in groups]
        return torch.cat(
            [part.expand(depth, *part.shape[1:]) for part in parts], 2
        )

    wanted, box_weights = joined('boxes'), joined('box_weights')
    qualities, _ = overlaps(
        bbox_cxcywh_to_xyxy(boxes.detach()), bbox_cxcywh_to_xyxy(wanted)
    )
    return LayerTargets(
        names=[group.name for group in groups],
        sizes=[group.labels.shape[2] for group in groups],
        labels=joined('labels'),
        label_weights=joined('label_weights'),
        boxes=wanted,
        box_weights=box_weights,
        qualities=torch.where(box_weights > 0, qualities, 0.0),
        divisors=divisors,
    )


@MODELS.register_module()
class FederatedQualityFocalLoss(QualityFocalLoss):
    """Quality focal loss of some categories a step, for LVIS.

    An image of a federated data set has no labels for most categories, so
    that a loss of all of them teaches that unlabelled objects are background.
    Here a step counts the categories that have objects in its images, and as
    many others, drawn without replacement, that there are ``num_sampled``.
    The probability of a category goes with its images in the training set to
    the power ``power``. Where more have objects, all of these count.

    One draw is for all queries of a call, and so for all decoder layers.
    Each process draws for its own images, as Detectron2 does: nothing is
    exchanged.

    Args:
        class_counts: Images of the training set that have each class, all
            above 0: ``image_count`` in LVIS's categories. A list, or a file
            with one (``.json``, ``.npy``, ``.yaml``).
        num_sampled: Categories that count, at least.
        power: Of the counts.
        beta: Of the quality focal loss.
        loss_weight: Factor of the loss.

    Raises:
        ValueError: If an argument is out of its range, or the logits have
            another number of classes than ``class_counts``.

    Source:
        Zhou, Koltun and Kraehenbuehl, Probabilistic two-stage detection,
        arXiv 2103.07461; numbers as in Detectron2 (``FED_LOSS_NUM_CLASSES``,
        ``FED_LOSS_FREQ_WEIGHT_POWER``). That of the public CO-DETR for LVIS
        is not published.
    """

    def __init__(
        self,
        class_counts: Sequence[float] | str,
        *,
        num_sampled: int = 50,
        power: float = 0.5,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        counts = read_class_weight(class_counts)
        if counts is None or not bool((counts > 0).all()):
            raise ValueError(
                'class_counts must be above 0 for each class, got '
                f'{class_counts!r}'
            )
        if self.activated:
            raise ValueError('activated must be False, got True')
        if num_sampled < 1:
            raise ValueError(
                f'num_sampled must be 1 or more, got {num_sampled}'
            )
        self.num_sampled = num_sampled
        # Not in checkpoints: the config has it.
        self.register_buffer(
            'fed_loss_weight', counts**power, persistent=False
        )

    def sample(self, labels: Tensor) -> Tensor:
        """Which classes count, ``(K,)`` bool; no value goes to the host.

        Args:
            labels: Class indices of any shape, ``K`` for the background.
        """
        weights = self.fed_loss_weight
        present = weights.new_zeros(len(weights) + 1)
        present = present.scatter(0, labels.flatten(), 1.0)[:-1].bool()
        # The largest of weight / Exp(1) are a draw without replacement.
        keys = weights / torch.empty_like(weights).exponential_()
        keys = keys.masked_fill(present, float('inf'))
        best = keys.topk(min(self.num_sampled, len(weights))).indices
        return present.scatter(0, best, True)

    def masked(self, pred: Tensor, labels: Tensor) -> Tensor:
        """Logits without loss and gradient where a class does not count.

        Args:
            pred: ``(N, K)`` logits.
            labels: ``(N,)`` int64, ``K`` for a negative.
        """
        if pred.shape[1] != len(self.fed_loss_weight):
            raise ValueError(
                'class_counts must have one number for each of the '
                f'{pred.shape[1]} classes, got {len(self.fed_loss_weight)}; '
                'set loss_cls.class_counts to those of the data'
            )
        return pred.masked_fill(~self.sample(labels), _SURELY_NOT)

    def forward(
        self, pred: Tensor, target: tuple[Tensor, Tensor], *args, **kwargs
    ) -> Tensor:
        """As ``mmdet.QualityFocalLoss``, of the classes that count.

        Args:
            pred: ``(N, K)`` logits.
            target: Labels ``(N,)`` int64, ``K`` for a negative, and
                qualities ``(N,)`` in [0, 1].
            *args: ``weight``, ``avg_factor`` and ``reduction_override``.
            **kwargs: The same.
        """
        pred = self.masked(pred, target[0])
        return super().forward(pred, target, *args, **kwargs)


def class_losses(
    loss: nn.Module,
    scores: Tensor,
    targets: LayerTargets,
    name: str = 'loss_cls',
) -> dict[str, Tensor]:
    """Classification losses of all groups in all layers.

    Args:
        loss: The head's ``loss_cls``; of ``mmdet.QualityFocalLoss`` the
            target of a positive is its IoU.
        scores: ``(D, B, T, K)`` float32 logits.
        targets: Of the same queries.
        name: Of the last layer's loss of matching queries.

    Returns:
        Scalars by name: the pattern of the group, and ``d<i>.`` before it in
        all layers but the last.
    """
    flat = scores.flatten(0, 2)
    labels = targets.labels.flatten()
    weights = targets.label_weights.flatten()
    federated = isinstance(loss, FederatedQualityFocalLoss)
    if federated:
        flat = loss.masked(flat, labels)
    if (federated or type(loss) is QualityFocalLoss) and not loss.activated:
        values = (
            loss.loss_weight
            * weights
            * _quality_focal(
                flat, labels, targets.qualities.flatten(), loss.beta
            )
        )
    else:
        goal = labels
        if isinstance(loss, QualityFocalLoss):
            goal = (labels, targets.qualities.flatten())
        values = loss(flat, goal, weights, reduction_override='none')
        values = values.flatten(1).sum(1) if values.dim() > 1 else values
    sums = _sum_groups(values.view(targets.labels.shape), targets)
    return _named(sums / targets.divisors[0], targets, name)


def _quality_focal(
    logits: Tensor, labels: Tensor, qualities: Tensor, beta: float
) -> Tensor:
    """Quality focal loss per row, without asking which rows are positive.

    arXiv 2006.04388; values and gradients of ``mmdet.QualityFocalLoss``.
    """
    # The column of the background takes the negatives' zeros, and goes.
    wanted = logits.new_zeros((len(logits), logits.shape[1] + 1))
    wanted = wanted.scatter(1, labels[:, None], qualities[:, None])[:, :-1]
    entropy = F.binary_cross_entropy_with_logits(
        logits, wanted, reduction='none'
    )
    return (entropy * (wanted - logits.sigmoid()).abs().pow(beta)).sum(1)


def overlaps(
    boxes: Tensor, others: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """IoU and union ``(*,)`` of boxes ``(*, 4)`` xyxy in pairs.

    Shapes may broadcast. ``eps``: Least area that is divided by. Values and
    gradients of ``mmdet``'s ``bbox_overlaps``, which copies ``eps`` to the
    device.
    """
    x1, y1, x2, y2 = boxes.unbind(-1)
    u1, v1, u2, v2 = others.unbind(-1)
    width = (torch.minimum(x2, u2) - torch.maximum(x1, u1)).clamp(min=0)
    height = (torch.minimum(y2, v2) - torch.maximum(y1, v1)).clamp(min=0)
    shared = width * height
    union = (x2 - x1) * (y2 - y1) + (u2 - u1) * (v2 - v1) - shared
    union = union.clamp(min=eps)
    return shared / union, union


def each_iou_loss(loss: nn.Module, boxes: Tensor, targets: Tensor) -> Tensor:
    """Loss ``(N,)`` of each of ``(N, 4)`` boxes xyxy, without a reduction."""
    if type(loss) is GIoULoss:
        overlap, union = overlaps(boxes, targets, loss.eps)
        low = torch.minimum(boxes[:, :2], targets[:, :2])
        extent = torch.maximum(boxes[:, 2:], targets[:, 2:]) - low
        width, height = extent.clamp(min=0).unbind(-1)
        hull = (width * height).clamp(min=loss.eps)
        return loss.loss_weight * (1 - overlap + (hull - union) / hull)
    values = loss(boxes, targets, reduction_override='none')
    return values.flatten(1).sum(1) if values.dim() > 1 else values


def box_losses(
    loss_bbox: nn.Module,
    loss_iou: nn.Module,
    boxes: Tensor,
    targets: LayerTargets,
    scales: Tensor,
) -> dict[str, Tensor]:
    """Box losses of all groups in all layers.

    Args:
        loss_bbox: The head's loss of normalised cx cy w h.
        loss_iou: The head's loss of xyxy boxes in pixels.
        boxes: ``(D, B, T, 4)`` float32, cx cy w h, normalised.
        targets: Of the same queries.
        scales: ``(B, 4)``, width, height, width and height of each image in
            pixels.

    Returns:
        ``loss_bbox`` and ``loss_iou``, named as in :func:`class_losses`.
    """
    predicted, wanted = boxes.flatten(0, 2), targets.boxes.flatten(0, 2)
    # Without weights: mmdet's losses would ask the device whether all are 0.
    distance = loss_bbox(predicted, wanted, reduction_override='none').sum(-1)
    overlap = each_iou_loss(
        loss_iou,
        (bbox_cxcywh_to_xyxy(boxes) * scales[:, None]).flatten(0, 2),
        (bbox_cxcywh_to_xyxy(targets.boxes) * scales[:, None]).flatten(0, 2),
    )
    losses = {}
    for name, item in (('loss_bbox', distance), ('loss_iou', overlap)):
        weighted = item.view_as(targets.box_weights) * targets.box_weights
        sums = _sum_groups(weighted, targets)
        losses |= _named(sums / targets.divisors[1], targets, name)
    return losses


def _sum_groups(values: Tensor, targets: LayerTargets) -> Tensor:
    """Sums ``(D, G)`` of the losses ``(D, B, T)`` of the queries."""
    parts = values.split(list(targets.sizes), 2)
    return torch.stack([part.sum((1, 2)) for part in parts], 1)


def _named(
    values: Tensor, targets: LayerTargets, name: str
) -> dict[str, Tensor]:
    """Losses ``(D, G)`` by name, as the port calls them."""
    last = len(values) - 1
    return {
        ('' if depth == last else f'd{depth}.') + pattern.format(name): value
        for group, pattern in enumerate(targets.names)
        for depth, value in enumerate(values[:, group].unbind())
    }
