"""Soft non-maximum suppression.

Source: Bodla et al., Soft-NMS, https://arxiv.org/abs/1704.04503
"""

import numpy as np
import torch
from torch import Tensor

from ._iou import box_rows, iou_matrix, iou_with_rest
from ._precision import exact, widen

__all__ = ['decay', 'softnms']

NAIVE, LINEAR, GAUSSIAN = range(3)

# Up to so many boxes all pairs are compared before the loop.
_AT_ONCE = 1024


def decay(
    iou: np.ndarray, method: int, iou_threshold: float, sigma: float
) -> np.ndarray:
    """Factor by which the score of an overlapping box is multiplied.

    Args:
        iou: ``(N,)``, IoU with the box that was just kept.
        method: 0 naive (0 from the threshold on), 1 linear (``1 - iou`` from
            the threshold on), 2 gaussian (``exp(-iou^2 / sigma)``).
        iou_threshold: Used by methods 0 and 1.
        sigma: Used by method 2.

    Returns:
        ``(N,)``, the type of ``iou``.

    Examples:
        >>> decay(np.array([0.25, 0.75]), 1, iou_threshold=0.5, sigma=0.5)
        array([1.  , 0.25])
    """
    if method == GAUSSIAN:
        return np.exp(-(iou * iou) / iou.dtype.type(sigma))
    full = 1 - iou if method == LINEAR else np.zeros_like(iou)
    return np.where(iou >= iou.dtype.type(iou_threshold), full, 1)


def _close_ranks(columns: list[np.ndarray], drop: np.ndarray) -> None:
    """Fill dropped places from the end, as the compiled loop does.

    It swaps a dropped box with the last one and goes on with that one, so
    the first hole gets the last survivor. The order of the boxes decides
    between equal scores, hence it has to be the same.
    """
    count = len(drop) - int(np.count_nonzero(drop))
    holes = np.flatnonzero(drop[:count])
    fill = np.flatnonzero(~drop[count:])[::-1] + count
    for column in columns:
        column[..., holes] = column[..., fill]


@exact
def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Keep boxes one by one, lowering the scores of those they overlap.

    Args:
        boxes: ``(N, 4)``, x1 y1 x2 y2, on the CPU.
        scores: ``(N,)``.
        dets: Filled up to the number of kept boxes with box and lowered
            score; ``(N, 5)``.
        iou_threshold: See :func:`decay`.
        sigma: See :func:`decay`.
        min_score: A box goes when its score falls below this; the best box
            of all stays in any case.
        method: See :func:`decay`.
        offset: 0 or 1, added to widths and heights.

    Returns:
        Indices of the kept boxes, best first, int64.
    """
    boxes_by_row = box_rows(boxes, offset)
    rows, known = boxes_by_row.numpy(), None
    score = widen(scores).numpy().astype(rows.dtype)
    index = np.arange(len(score))
    order = [score, index]
    if len(score) <= _AT_ONCE:
        iou = iou_matrix(boxes_by_row, boxes_by_row, offset).numpy()
        known = decay(iou, method, iou_threshold, sigma)
    else:
        rows = rows.copy()
        order.append(rows)
    count, i = len(score), 0
    while i < count:
        best = i + int(score[i:count].argmax())
        for column in order:
            # A column is one number or five; the right side must be a copy.
            column[..., i], column[..., best] = (
                column[..., best].copy(),
                column[..., i].copy(),
            )
        rest = slice(i + 1, count)
        if known is not None:
            score[rest] *= known[index[i], index[rest]]
        else:
            iou = iou_with_rest(rows[:, i:count], offset)
            score[rest] *= decay(iou, method, iou_threshold, sigma)
        drop = score[rest] < score.dtype.type(min_score)
        if drop.any():
            _close_ranks([column[..., rest] for column in order], drop)
            count -= int(np.count_nonzero(drop))
        i += 1
    kept = torch.from_numpy(index[:count])
    dets[:count, :4] = boxes[kept]
    dets[:count, 4] = torch.from_numpy(score[:count])
    return kept
