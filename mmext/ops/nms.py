"""Greedy non-maximum suppression.

Boxes are taken in blocks, best scores first. Inside a block the order
matters and is resolved box by box on a small matrix; what the block leaves is
then compared with all remaining boxes at once. Time is that of the IoU
arithmetic, and memory does not grow with the square of the number of boxes.
"""

import numpy as np
import torch
from torch import Tensor

from ._iou import box_rows, iou_matrix
from ._precision import exact

__all__ = ['nms', 'nms_by_blocks', 'split_by_gaps']

# Boxes of a block, and pairs that are compared at once. On the CPU the
# matrices then stay in the cache; elsewhere few, large steps count.
_ON_CPU = 256, 1 << 17
_ELSEWHERE = 2048, 1 << 25

# Below this the split would have to be exact in the last bit.
_SPLIT_THRESHOLD = 1e-3


def _keep_in_order(hit: Tensor) -> Tensor:
    """Boxes that no kept box before them hits: ``(N, N)`` to ``(N,)``."""
    hits = hit.triu(1).cpu().numpy()
    dead = np.zeros(len(hits), bool)
    for i in np.flatnonzero(hits.any(1)).tolist():
        if not dead[i]:
            dead |= hits[i]
    return torch.from_numpy(~dead).to(hit.device)


def nms_by_blocks(boxes: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Suppress boxes that are sorted by score.

    Args:
        boxes: ``(5, N)`` of :func:`~mmext.ops._iou.box_rows`, best first.
        iou_threshold: A box goes if its IoU with a kept one is above this.
        offset: 0 or 1.

    Returns:
        Ascending positions of the kept boxes, int64.
    """
    block, pairs = _ON_CPU if boxes.is_cpu else _ELSEWHERE
    kept = []
    place = torch.arange(boxes.shape[1], device=boxes.device)
    while len(place):
        head, rest = boxes[:, :block], boxes[:, block:]
        keep = _keep_in_order(iou_matrix(head, head, offset) > iou_threshold)
        kept.append(place[:block][keep])
        head, place = head[:, keep], place[block:]
        step = max(pairs // head.shape[1], 1)
        alive = [
            (iou_matrix(head, part, offset) > iou_threshold)
            .any(0)
            .logical_not_()
            for part in rest.split(step, dim=1)
        ]
        left = torch.cat(alive).nonzero()[:, 0]
        boxes, place = rest[:, left], place[left]
    return torch.cat(kept) if kept else place


def split_by_gaps(boxes: Tensor, offset: int, size: int) -> list[Tensor]:
    """Divide boxes where no box covers a column between them.

    mmcv moves the boxes of each class apart and suppresses them together;
    the gaps between the classes give the groups back.

    Args:
        boxes: ``(5, N)`` of :func:`~mmext.ops._iou.box_rows`.
        offset: 0 or 1.
        size: Not more than one cut is made within so many boxes.

    Returns:
        Positions of the boxes of every group, ascending, int64. Boxes of two
        groups do not overlap.

    Examples:
        >>> boxes = box_rows(torch.tensor([[9., 0, 12, 1], [0., 0, 5, 1]]), 0)
        >>> split_by_gaps(boxes, offset=0, size=1)
        [tensor([1]), tensor([0])]
    """
    left, order = boxes[0].sort()
    reach = boxes[2][order].cummax(0).values + offset
    cuts = (left[1:] > reach[:-1]).nonzero()[:, 0] + 1
    bucket = cuts // size
    cuts = cuts[bucket.diff(prepend=bucket.new_zeros(1)) > 0]
    parts = order.tensor_split(cuts.cpu())
    return [part.sort().values for part in parts]


@exact
def nms(
    boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int
) -> Tensor:
    """Keep the best box of every cluster of overlapping ones.

    Args:
        boxes: ``(N, 4)``, x1 y1 x2 y2.
        scores: ``(N,)``. Equal scores keep the order of the input, on every
            device; the compiled operator leaves that to ``torch.sort``.
        iou_threshold: A box goes if its IoU with a better kept box is above
            this.
        offset: 0 or 1, added to widths and heights.

    Returns:
        Indices of the kept boxes, best first, int64.
    """
    order = scores.sort(dim=0, descending=True, stable=True).indices
    rows = box_rows(boxes[order], offset)
    parts = [torch.arange(len(order), device=order.device)]
    # A GPU compares far-apart boxes faster than it is told not to.
    if rows.is_cpu and len(order) and iou_threshold > _SPLIT_THRESHOLD:
        parts = split_by_gaps(rows, offset, size=_ON_CPU[0])
    kept = [
        part[nms_by_blocks(rows[:, part], iou_threshold, offset)]
        for part in parts
    ]
    return order[torch.cat(kept).sort().values]
