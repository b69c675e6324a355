"""Positives of the auxiliary heads, turned into decoder queries.

Shape letters: B images, A samples of one image, P queries of one head, C
channels.
"""

from dataclasses import dataclass

import torch
from mmdet.structures.bbox import bbox_xyxy_to_cxcywh
from torch import Tensor

from ...utils.precision import to_float32
from .losses import GroupTargets

__all__ = [
    'MIN_CO_QUERIES',
    'CoPositives',
    'CoQueries',
    'make_co_queries',
]

# Fewer queries than this are filled up with negatives.
MIN_CO_QUERIES = 9


@dataclass(frozen=True)
class CoPositives:
    """What one auxiliary head assigned, one entry per image.

    Attributes:
        boxes: ``(A, 4)`` float, xyxy in pixels: proposals or anchors.
        labels: ``(A,)`` int64: the class, ``num_classes`` for a negative.
        targets: ``(A, 4)`` float, xyxy in pixels: the box of a positive's
            ground truth; any finite box for a negative.
        feats: ``(A, C)`` features of the boxes, or None.
    """

    boxes: list[Tensor]
    labels: list[Tensor]
    targets: list[Tensor]
    feats: list[Tensor] | None = None


@dataclass(frozen=True)
class CoQueries:
    """Decoder queries of one auxiliary head and what they should predict.

    Attributes:
        boxes: ``(B, P, 4)`` float32, cx cy w h, normalised.
        labels: ``(B, P)`` int64, ``num_classes`` for a negative.
        target_boxes: ``(B, P, 4)`` float32, cx cy w h, normalised.
        label_weights: ``(B, P)`` float32, 0 for a filler and 1 otherwise.
        box_weights: ``(B, P)`` float32, 1 for a positive and 0 otherwise.
        fillers: ``(B, P)`` bool, True for a filler; None if there is none.
        feats: ``(B, P, C)``, or None.
    """

    boxes: Tensor
    labels: Tensor
    target_boxes: Tensor
    label_weights: Tensor
    box_weights: Tensor
    fillers: Tensor | None
    feats: Tensor | None

    def targets(self, name: str) -> GroupTargets:
        """What they should predict; ``name``: pattern of the losses."""
        return GroupTargets(
            name=name,
            labels=self.labels[None],
            label_weights=self.label_weights[None],
            boxes=self.target_boxes[None],
            box_weights=self.box_weights[None],
        )


def make_co_queries(
    positives: CoPositives,
    scales: Tensor,
    num_classes: int,
    max_queries: int,
) -> CoQueries:
    """Choose the decoder queries of one auxiliary head.

    The number of queries is the largest number of positives in an image, at
    least 9 and at most ``max_queries``. An image with more positives keeps a
    random subset; one with fewer is filled with random negatives, and when
    these run out with fillers, whole-image boxes of weight 0 that no other
    query may attend to. Every head therefore always sends queries, also from
    images without boxes and without proposals.

    ``scales``: ``(B, 4)`` float32, width, height, width and height of each
    image in pixels.

    Source:
        CO-DETR, arXiv 2211.12860, section 3.3; compatible with the public
        port with ``use_zero_padding=False``, which drops the loss where we
        use fillers.
    """
    if max_queries < MIN_CO_QUERIES:
        raise ValueError(
            f'max_queries must be at least {MIN_CO_QUERIES}, got '
            f"{max_queries}; it is the query head's max_co_queries"
        )
    chosen = [_split(labels, num_classes) for labels in positives.labels]
    most = max(len(pos) for pos, _ in chosen)
    count = max(MIN_CO_QUERIES, min(max_queries, most))
    rows = [
        _one_image(positives, i, *chosen[i], count, num_classes, scale)
        for i, scale in enumerate(scales)
    ]
    real = torch.stack([row['real'] for row in rows])
    is_full = all(row['num_real'] == count for row in rows)
    return CoQueries(
        boxes=torch.stack([row['boxes'] for row in rows]),
        labels=torch.stack([row['labels'] for row in rows]),
        target_boxes=torch.stack([row['targets'] for row in rows]),
        label_weights=real.float(),
        box_weights=torch.stack([row['box_weights'] for row in rows]),
        fillers=None if is_full else ~real,
        feats=None
        if positives.feats is None
        else torch.stack([row['feats'] for row in rows]),
    )


def _split(labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Indices of the positives and of the negatives."""
    positive = ((labels >= 0) & (labels < num_classes)).nonzero()[:, 0]
    return positive, (labels == num_classes).nonzero()[:, 0]


def _subset(index: Tensor, count: int) -> Tensor:
    """A random subset of at most ``count`` entries."""
    if len(index) <= count:
        return index
    return index[torch.randperm(len(index), device=index.device)[:count]]


def _one_image(
    positives: CoPositives,
    i: int,
    pos: Tensor,
    neg: Tensor,
    count: int,
    num_classes: int,
    scale: Tensor,
) -> dict:
    """Queries of image ``i``, padded to ``count``."""
    pos = _subset(pos, count)
    index = torch.cat((pos, _subset(neg, count - len(pos))))
    boxes, targets = to_float32((positives.boxes[i], positives.targets[i]))
    num_real, num_fill = len(index), count - len(index)
    box_weights = boxes.new_zeros(count)
    box_weights[: len(pos)] = 1
    real = torch.arange(count, device=boxes.device) < num_real
    row = {
        'boxes': bbox_xyxy_to_cxcywh(boxes[index] / scale),
        'targets': bbox_xyxy_to_cxcywh(targets[index] / scale),
        'labels': positives.labels[i][index],
        'box_weights': box_weights,
        'real': real,
        'num_real': num_real,
    }
    if positives.feats is not None:
        feats = positives.feats[i][index]
        row['feats'] = torch.cat(
            (feats, feats.new_zeros((num_fill, feats.shape[1])))
        )
    if num_fill:
        whole = boxes.new_tensor([[0.5, 0.5, 1.0, 1.0]]).expand(num_fill, 4)
        row['boxes'] = torch.cat((row['boxes'], whole))
        row['targets'] = torch.cat((row['targets'], whole))
        row['labels'] = torch.cat(
            (row['labels'], row['labels'].new_full((num_fill,), num_classes))
        )
    return row
