"""Positives of the auxiliary heads, turned into decoder queries.

Shape letters: B images, A samples of one image, P queries of one head, C
channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from mmdet.structures.bbox import bbox_xyxy_to_cxcywh
from torch import Tensor

from ...utils.tensors import to_float32
from .losses import GroupTargets

# Fewer queries than this are filled up with negatives.
MIN_CO_QUERIES = 9

# A label that is neither a class nor background is never chosen as a query.
UNUSED_LABEL = -1


@dataclass(frozen=True)
class CoPositives:
    """What one auxiliary head assigned.

    Attributes:
        boxes: ``(B, A, 4)`` float, xyxy in pixels: proposals or anchors.
        labels: ``(B, A)`` int64: the class, ``num_classes`` for a negative,
            -1 for a box that is neither, or that only fills the row up.
        targets: ``(B, A, 4)`` float, xyxy in pixels: the box of a positive's
            ground truth; any finite box for a negative.
        feats: ``(B, A, C)`` features of the boxes, or None.
    """

    boxes: Tensor
    labels: Tensor
    targets: Tensor
    feats: Tensor | None = None


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
    positives: Sequence[CoPositives],
    scales: Tensor,
    num_classes: int,
    max_queries: int,
) -> list[CoQueries]:
    """Choose the decoder queries of all auxiliary heads.

    The number of queries of a head is the largest number of positives in an
    image, at least 9 and at most ``max_queries``. An image with more positives
    keeps a random subset; one with fewer is filled with random negatives, and
    when these run out with fillers, whole-image boxes of weight 0 that no
    other query may attend to. Every head therefore always sends queries, also
    from images without boxes and without proposals. The host waits for the
    numbers of all heads once.

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
    if not positives:
        return []
    numbers = []
    for item in positives:
        usable = item.labels >= 0
        positive = usable & (item.labels < num_classes)
        numbers += [positive.sum(1).max(), usable.sum(1).min()]
    # The host waits here.
    numbers = torch.stack(numbers).tolist()
    queries = []
    for item, most, fewest in zip(positives, numbers[::2], numbers[1::2]):
        count = max(MIN_CO_QUERIES, min(max_queries, most))
        queries.append(
            _choose(item, scales, num_classes, count, fewest < count)
        )
    return queries


def _choose(
    positives: CoPositives,
    scales: Tensor,
    num_classes: int,
    count: int,
    has_fillers: bool,
) -> CoQueries:
    """Queries of one head: positives first, then negatives, then fillers."""
    labels = positives.labels
    batch, given = labels.shape
    rank = torch.stack(
        [torch.randperm(given, device=labels.device) for _ in range(batch)]
    )
    positive = (labels >= 0) & (labels < num_classes)
    key = torch.where(positive, rank, rank + given)
    key = torch.where(labels >= 0, key, 2 * given)
    if given < count:
        key = torch.nn.functional.pad(key, (0, count - given), value=2 * given)
    key, index = key.topk(count, largest=False)
    real = key < 2 * given
    # A filler may point behind the boxes.
    index = index.masked_fill(~real, 0) if given else None

    def chosen(values: Tensor, filler: Tensor) -> Tensor:
        """Rows of the queries; ``filler`` is what a filler has."""
        if index is None:
            return filler.expand(batch, count, *values.shape[2:])
        shape = (batch, count, *values.shape[2:])
        at = index.view(batch, count, *[1] * (values.dim() - 2))
        mask = real.view_as(at)
        return torch.where(mask, values.gather(1, at.expand(shape)), filler)

    whole = torch.arange(4, device=labels.device).ge(2) * 0.5 + 0.5
    boxes, targets = (
        bbox_xyxy_to_cxcywh(to_float32(values) / scales[:, None])
        for values in (positives.boxes, positives.targets)
    )
    feats = positives.feats
    return CoQueries(
        boxes=chosen(boxes, whole),
        labels=chosen(labels, labels.new_full((), num_classes)),
        target_boxes=chosen(targets, whole),
        label_weights=real.float(),
        box_weights=(key < given).float(),
        fillers=~real if has_fillers else None,
        feats=None if feats is None else chosen(feats, feats.new_zeros(())),
    )
