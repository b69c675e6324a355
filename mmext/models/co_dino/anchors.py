"""Assignment and sampling of anchors and RoIs without waiting for a GPU.

mmdet asks the device again and again how many anchors are positive. Here all
tensors have a size that the host knows, and masks say which entries count.

Shape letters: B images, N boxes of one image, M boxes of its ground truth, L
levels, S samples.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from mmdet.models.task_modules import (
    ATSSAssigner,
    BboxOverlaps2D,
    DeltaXYWHBBoxCoder,
    MaxIoUAssigner,
    PseudoSampler,
    RandomSampler,
)
from torch import Tensor, nn

from ...utils.tensors import to_device
from .losses import overlaps

NEGATIVE = -1
IGNORED = -2
"""Values instead of the index of a box: background, and neither of both."""


class AnchorGrid(NamedTuple):
    """Anchors of all levels.

    Attributes:
        anchors: ``(N, 4)`` float32, xyxy in pixels.
        counts: Anchors per level.
        inside: ``(B, N)`` bool, False where an anchor is of a cell beyond
            ``pad_shape``; None if there is none.
    """

    anchors: Tensor
    counts: list[int]
    inside: Tensor | None

    def image_mask(self, i: int) -> Tensor | None:
        """``(N,)`` bool of one image."""
        return None if self.inside is None else self.inside[i]


class Samples(NamedTuple):
    """Samples of one image.

    Attributes:
        index: ``(S,)`` int64, which box was drawn, positives first.
        positive: ``(S,)`` bool.
        drawn: ``(S,)`` bool, False where there was nothing left to draw.
    """

    index: Tensor
    positive: Tensor
    drawn: Tensor


def assigns_plainly(
    head: nn.Module, assigner: object, sampler: object
) -> bool:
    """Whether the functions of this module can replace these.

    Otherwise mmdet's own code has to assign and sample: with further types,
    and with settings that no configuration of CO-DETR has.
    """
    calculator = assigner.iou_calculator
    plain = (
        type(calculator) is BboxOverlaps2D
        and calculator.scale == 1
        and calculator.dtype is None
        and assigner.ignore_iof_thr <= 0
        and head.train_cfg.get('allowed_border', -1) < 0
    )
    if type(assigner) is ATSSAssigner:
        return (
            plain and assigner.alpha is None and type(sampler) is PseudoSampler
        )
    return (
        plain
        and type(assigner) is MaxIoUAssigner
        and type(sampler) is RandomSampler
        and assigner.gt_max_assign_all
        and assigner.gpu_assign_thr <= 0
        and getattr(assigner, 'perm_repeat_gt_cfg', None) is None
    )


def anchor_grid(
    head: nn.Module,
    sizes: Sequence[tuple[int, int]],
    batch_img_metas: Sequence[dict],
    device: torch.device,
) -> AnchorGrid:
    """Anchors of an ``mmdet`` ``AnchorHead``.

    Args:
        head: With ``prior_generator``, whose base anchors go to the device
            for good.
        sizes: Height and width of the maps, ``L`` pairs.
        batch_img_metas: Per image ``pad_shape``.
        device: Of the maps.
    """
    generator = head.prior_generator
    generator.base_anchors = [b.to(device) for b in generator.base_anchors]
    levels = generator.grid_priors(list(sizes), device=device)
    limits = np.array(
        [
            [
                (min(-(-h // step[1]), rows), min(-(-w // step[0]), columns))
                for step, (rows, columns) in zip(generator.strides, sizes)
            ]
            for h, w in (meta['pad_shape'][:2] for meta in batch_img_metas)
        ]
    )
    inside = None
    if (limits != np.array(sizes)).any():
        bounds = to_device(limits, device)
        inside = torch.cat(
            [
                (
                    (torch.arange(rows, device=device) < bounds[:, i, :1])[
                        :, :, None, None
                    ]
                    & (
                        torch.arange(columns, device=device) < bounds[:, i, 1:]
                    )[:, None, :, None]
                )
                .expand(-1, -1, -1, generator.num_base_anchors[i])
                .flatten(1)
                for i, (rows, columns) in enumerate(sizes)
            ],
            1,
        )
    return AnchorGrid(
        torch.cat(levels), [len(level) for level in levels], inside
    )


def assign_max_iou(
    assigner: MaxIoUAssigner,
    boxes: Tensor,
    usable: Tensor | None,
    gt_boxes: Tensor,
) -> Tensor:
    """Assign the boxes of one image by their IoU.

    Args:
        assigner: Gives the thresholds.
        boxes: ``(N, 4)`` float32, xyxy.
        usable: ``(N,)`` bool, False for a box that is never assigned; None
            for all True.
        gt_boxes: ``(M, 4)`` float32, xyxy.

    Returns:
        ``(N,)`` int64, index of a box or :data:`NEGATIVE` or
        :data:`IGNORED`.

    Source:
        ``mmdet.MaxIoUAssigner``; the assignment is the same.
    """
    if not len(gt_boxes) or not len(boxes):
        assigned = boxes.new_full((len(boxes),), NEGATIVE, dtype=torch.int64)
        return _without(assigned, usable)
    iou, _ = overlaps(gt_boxes[:, None], boxes)
    if usable is not None:
        iou = iou.masked_fill(~usable, -1.0)
    best, index = iou.max(0)
    low, high = 0.0, assigner.neg_iou_thr
    if isinstance(high, tuple | list):
        low, high = high
    assigned = torch.where((best >= low) & (best < high), NEGATIVE, IGNORED)
    assigned = torch.where(best >= assigner.pos_iou_thr, index, assigned)
    if assigner.match_low_quality:
        most = iou.max(1, keepdim=True).values
        hit = (iou == most) & (most >= assigner.min_pos_iou)
        number = torch.arange(len(gt_boxes), device=boxes.device)[:, None]
        # Where several want the same box, mmdet's loop leaves the last.
        last = torch.where(hit, number, -1).max(0).values
        assigned = torch.where(last >= 0, last, assigned)
    return _without(assigned, usable)


def _without(assigned: Tensor, usable: Tensor | None) -> Tensor:
    """An assignment that ignores what is not usable."""
    if usable is None:
        return assigned
    return torch.where(usable, assigned, IGNORED)


def assign_atss(
    assigner: ATSSAssigner,
    grid: AnchorGrid,
    inside: Tensor | None,
    gt_boxes: Tensor,
) -> Tensor:
    """Assign the anchors of one image by ATSS.

    Args:
        assigner: Gives ``topk``.
        grid: The anchors, ``N``.
        inside: ``(N,)`` bool, from :meth:`AnchorGrid.image_mask`.
        gt_boxes: ``(M, 4)`` float32, xyxy.

    Returns:
        As of :func:`assign_max_iou`.

    Source:
        ATSS, arXiv 1912.02424; the assignment of ``mmdet.ATSSAssigner``.
    """
    anchors = grid.anchors
    negative = anchors.new_full((len(anchors),), NEGATIVE, dtype=torch.int64)
    if not len(gt_boxes):
        return _without(negative, inside)
    centre = (anchors[:, :2] + anchors[:, 2:]) / 2
    middle = (gt_boxes[:, :2] + gt_boxes[:, 2:]) / 2
    distance = (centre[None] - middle[:, None]).square().sum(-1).sqrt()
    if inside is not None:
        distance = distance.masked_fill(~inside, float('inf'))
    nearest, start = [], 0
    for level in distance.split(grid.counts, 1):
        count = min(assigner.topk, level.shape[1])
        nearest.append(level.topk(count, 1, largest=False).indices + start)
        start += level.shape[1]
    # Candidates (M, L * topk); a level may have fewer inside.
    index = torch.cat(nearest, 1)
    usable = torch.ones_like(index, dtype=torch.bool)
    if inside is not None:
        usable = inside[index]
    iou = overlaps(gt_boxes[:, None], anchors)[0].gather(1, index)
    number = usable.sum(1, keepdim=True)
    mean = (iou * usable).sum(1, keepdim=True) / number
    spread = ((iou - mean).square() * usable).sum(1, keepdim=True)
    limit = mean + (spread / (number - 1)).sqrt()
    corner = centre[index]
    inner = torch.cat(
        (corner - gt_boxes[:, None, :2], gt_boxes[:, None, 2:] - corner), -1
    ).amin(-1)
    positive = (iou >= limit) & (inner > 0.01) & usable
    # Of several boxes an anchor takes the one that it overlaps most.
    scores = torch.full_like(distance, -1.0).scatter(
        1, index, torch.where(positive, iou, -1.0)
    )
    best, box = scores.max(0)
    return _without(torch.where(best >= 0, box, negative), inside)


def draw_samples(assigned: Tensor, sampler: RandomSampler) -> Samples:
    """Draw positives and negatives of one image.

    Args:
        assigned: ``(N,)``, from :func:`assign_max_iou`.
        sampler: Gives ``num``, ``pos_fraction`` and ``neg_pos_ub``.

    Returns:
        ``S`` is ``num`` and the largest number of positives together, of
        which at most ``num`` are drawn.

    Source:
        ``mmdet.RandomSampler``; the samples have the same distribution.
    """
    if len(assigned) < sampler.num:
        # There is always enough to take from.
        assigned = torch.nn.functional.pad(
            assigned, (0, sampler.num - len(assigned)), value=IGNORED
        )
    rank = torch.randperm(len(assigned), device=assigned.device)
    most = int(sampler.num * sampler.pos_fraction)
    index, drawn = _first(rank, assigned >= 0, most)
    number = drawn.sum()
    limit = sampler.num - number
    if sampler.neg_pos_ub >= 0:
        bound = (sampler.neg_pos_ub * number.clamp(min=1)).floor().long()
        limit = torch.minimum(limit, bound)
    others, left = _first(rank, assigned == NEGATIVE, sampler.num)
    left &= torch.arange(sampler.num, device=left.device) < limit
    drawn = torch.cat((drawn, left))
    positive = torch.zeros_like(drawn)
    positive[:most] = drawn[:most]
    # An entry for which nothing was drawn may point behind the boxes.
    index = torch.cat((index, others)).masked_fill(~drawn, 0)
    return Samples(index, positive, drawn)


def _first(rank: Tensor, allowed: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` allowed entries of lowest rank, and whether they exist."""
    key = torch.where(allowed, rank, len(rank))
    lowest, index = key.topk(count, largest=False)
    return index, lowest < len(rank)


def encode_boxes(coder: object, boxes: Tensor, targets: Tensor) -> Tensor:
    """Deltas ``(*, 4)`` from boxes to targets, both ``(*, 4)`` xyxy."""
    if type(coder) is not DeltaXYWHBBoxCoder:
        return coder.encode(boxes, targets)
    (x, y, w, h), (u, v, s, t) = _centred(boxes), _centred(targets)
    deltas = ((u - x) / w, (v - y) / h, (s / w).log(), (t / h).log())
    return torch.stack(
        [
            (delta - mean) / std
            for delta, mean, std in zip(deltas, coder.means, coder.stds)
        ],
        -1,
    )


def decode_boxes(
    coder: object, boxes: Tensor, deltas: Tensor, size: Tensor | None = None
) -> Tensor:
    """Boxes ``(*, 4)`` xyxy that deltas ``(*, 4)`` make of others.

    ``size``: ``(*, 4)``, width, height, width and height that the boxes are
    clipped to; None leaves them as they are.
    """
    if type(coder) is not DeltaXYWHBBoxCoder or coder.add_ctr_clamp:
        decoded = coder.decode(boxes.flatten(0, -2), deltas.flatten(0, -2))
        decoded = decoded.view_as(deltas)
    else:
        x, y, w, h = _centred(boxes)
        du, dv, ds, dt = (
            delta * std + mean
            for delta, mean, std in zip(
                deltas.unbind(-1), coder.means, coder.stds
            )
        )
        most = abs(float(np.log(16 / 1000)))
        u, v = x + w * du, y + h * dv
        s = w * ds.clamp(-most, most).exp() / 2
        t = h * dt.clamp(-most, most).exp() / 2
        decoded = torch.stack((u - s, v - t, u + s, v + t), -1)
    if size is None or not getattr(coder, 'clip_border', True):
        return decoded
    return decoded.clamp(min=0).minimum(size)


def _centred(boxes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Centre, width and height of xyxy boxes."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1
