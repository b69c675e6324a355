"""Non-maximum suppression: greedy, in groups, and soft.

On a CPU kernels of numba go box by box, where it is installed; without it
NumPy compares each box that is left with all that follow. Boxes on a GPU come
to the CPU for it, unless torchvision has a kernel there.
"""

import numpy as np
import torch
from torch import Tensor

from ..utils.tensors import exact, widen
from .choice import backend_of, uses_numba


def box_rows(boxes: Tensor, offset: int) -> Tensor:
    """Store boxes by coordinate, with their areas.

    ``boxes``: ``(N, 4)``, x1 y1 x2 y2 in pixels. Returns ``(5, N)``,
    contiguous: x1, y1, x2, y2, area; float64 for float64 boxes, else float32.
    """
    x1, y1, x2, y2 = widen(boxes).unbind(1)
    area = (x2 - x1 + offset) * (y2 - y1 + offset)
    return torch.stack([x1, y1, x2, y2, area])


def iou_with_rest(boxes: np.ndarray, offset: int) -> np.ndarray:
    """IoU of the first box with all that follow it.

    ``boxes``: ``(5, N)``, see :func:`box_rows`. Returns ``(N - 1,)``.
    """
    first, rest = boxes[:, 0], boxes[:, 1:]
    width = np.minimum(first[2], rest[2])
    width -= np.maximum(first[0], rest[0])
    height = np.minimum(first[3], rest[3])
    height -= np.maximum(first[1], rest[1])
    if offset:
        width += offset
        height += offset
    inter = np.maximum(width, 0, out=width)
    inter *= np.maximum(height, 0, out=height)
    union = np.add(first[4], rest[4], out=height)
    union -= inter
    with np.errstate(divide='ignore', invalid='ignore'):
        inter /= union
    return inter


# Below this the reach of a box would have to be exact in the last bit.
_REACH_THRESHOLD = 1e-3


def _suppressors(
    rows: np.ndarray, threshold: float, offset: int, *, inclusive: bool
) -> np.ndarray:
    """Position of the box that suppresses each of ``(5, N)``, best first.

    It is its own for a box that is kept. ``inclusive``: Whether a box on the
    threshold goes, too.
    """
    exactly = rows.dtype.type
    if not uses_numba(torch.device('cpu')):
        by = left = np.arange(rows.shape[1])
        by = by.copy()
        exceeds = np.greater_equal if inclusive else np.greater
        while len(left):
            hit = exceeds(iou_with_rest(rows, offset), exactly(threshold))
            first, left, rows = left[0], left[1:], rows[:, 1:]
            if hit.any():
                by[left[hit]] = first
                # Several times as fast as by a mask.
                rest = np.flatnonzero(~hit)
                left, rows = left[rest], rows.take(rest, axis=1)
        return by
    from ._nms_kernels import suppress

    rank = np.argsort(rows[0], kind='stable').astype(np.int32)
    box_of = np.empty_like(rank)
    box_of[rank] = np.arange(len(rank), dtype=np.int32)
    reach = np.inf
    if len(rank) and threshold > _REACH_THRESHOLD:
        reach = (rows[2] - rows[0]).max() + offset
    by = rank.copy()
    suppress(
        np.take(rows, rank, axis=1),
        *(rank, box_of, exactly(threshold), inclusive),
        *(exactly(offset), exactly(reach), by),
    )
    return by[box_of]


@exact
def nms(
    boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int
) -> Tensor:
    """Keep the best box of every cluster of overlapping ones.

    ``boxes``: ``(N, 4)``, x1 y1 x2 y2; ``scores``: ``(N,)``. Equal scores keep
    the order of the input, on every device; the compiled operator leaves that
    to ``torch.sort``. Returns indices of the kept boxes, best first, int64.
    """
    order = scores.sort(dim=0, descending=True, stable=True).indices
    if backend_of('nms', boxes.device.type) == 'torchvision':
        sized = widen(boxes)[order]
        sized[:, 2:] += offset
        ranks = torch.arange(len(order), 0, -1, device=boxes.device)
        # Of the type of the boxes, in which the others compare.
        limit = torch.tensor(iou_threshold, dtype=sized.dtype).item()
        kept = torch.ops.torchvision.nms(sized, ranks.to(sized), limit)
        return order[kept]
    rows = box_rows(boxes[order], offset).cpu().numpy()
    by = _suppressors(rows, iou_threshold, offset, inclusive=False)
    kept = np.flatnonzero(by == np.arange(len(by)))
    return order[torch.from_numpy(kept).to(order.device)]


@exact
def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """Group every suppressed box with the kept box that suppressed it.

    ``dets``: ``(N, 5)``, x1 y1 x2 y2 score, on the CPU. Equal scores keep the
    order of the input.
    """
    order = dets[:, 4].sort(dim=0, descending=True, stable=True).indices
    rows = box_rows(dets[order, :4], 0).numpy()
    by = _suppressors(rows, np.float32(iou_threshold), 0, inclusive=True)
    # Stable: the kept box is the first of its group.
    groups = np.split(
        order.numpy()[np.argsort(by, kind='stable')],
        np.cumsum(np.bincount(by, minlength=1))[:-1],
    )
    return [group.tolist() for group in groups if len(group)]


NAIVE, LINEAR, GAUSSIAN = range(3)


def decay(
    iou: np.ndarray, method: int, iou_threshold: float, sigma: float
) -> np.ndarray:
    """Factor by which the score of an overlapping box is multiplied.

    ``iou``: ``(N,)``, IoU with the box that was just kept. Returns ``(N,)``,
    the type of ``iou``.
    """
    if method == GAUSSIAN:
        return np.exp(-(iou * iou) / iou.dtype.type(sigma))
    full = 1 - iou if method == LINEAR else np.zeros_like(iou)
    return np.where(iou >= iou.dtype.type(iou_threshold), full, 1)


def _close_ranks(columns: list[np.ndarray], drop: np.ndarray) -> None:
    """Fill gaps of dropped boxes from the end, as the compiled loop does.

    It swaps a dropped box with the last one and goes on with that one, so
    the first hole gets the last survivor. The order of the boxes decides
    between equal scores, hence it has to be the same.
    """
    count = len(drop) - int(np.count_nonzero(drop))
    holes = np.flatnonzero(drop[:count])
    fill = np.flatnonzero(~drop[count:])[::-1] + count
    for column in columns:
        column[..., holes] = column[..., fill]


def _lower_scores(
    rows: np.ndarray,
    score: np.ndarray,
    index: np.ndarray,
    method: int,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    offset: int,
) -> int:
    """Lower the scores in place; returns how many boxes stay in front.

    ``rows``: ``(5, N)``, ``score`` and ``index``: ``(N,)``, all reordered.
    """
    order = [score, index, rows]
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
        iou = iou_with_rest(rows[:, i:count], offset)
        score[rest] *= decay(iou, method, iou_threshold, sigma)
        drop = score[rest] < score.dtype.type(min_score)
        if drop.any():
            _close_ranks([column[..., rest] for column in order], drop)
            count -= int(np.count_nonzero(drop))
        i += 1
    return count


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

    ``boxes``: ``(N, 4)``, x1 y1 x2 y2, on the CPU; ``scores``: ``(N,)``;
    ``dets``: Filled up to the number of kept boxes with box and lowered score;
    ``(N, 5)``. Returns indices of the kept boxes, best first, int64.
    """
    rows = box_rows(boxes, offset).numpy()
    score = widen(scores).numpy().astype(rows.dtype)
    index = np.arange(len(score))
    settings = iou_threshold, sigma, min_score
    if uses_numba(boxes.device):
        from ._nms_kernels import lower_scores

        exactly = rows.dtype.type
        count = lower_scores(
            *(rows, score, index, method),
            *(exactly(x) for x in (*settings, offset)),
        )
    else:
        count = _lower_scores(rows, score, index, method, *settings, offset)
    kept = torch.from_numpy(index[:count])
    dets[:count, :4] = boxes[kept]
    dets[:count, 4] = torch.from_numpy(score[:count])
    return kept
