"""Non-maximum suppression that tells which box suppressed which."""

import numpy as np
from torch import Tensor

from ._iou import box_rows, iou_with_rest
from ._precision import exact

__all__ = ['nms_match']


@exact
def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """Group every suppressed box with the kept box that suppressed it.

    Args:
        dets: ``(N, 5)``, x1 y1 x2 y2 score, on the CPU. Equal scores keep
            the order of the input.
        iou_threshold: A box joins the best kept box with which its IoU is at
            least this.

    Returns:
        One list per kept box, best first: its index, then those of the boxes
        it suppressed, best first.
    """
    order = dets[:, 4].sort(dim=0, descending=True, stable=True).indices
    rows = box_rows(dets[order, :4], 0).numpy()
    order = order.numpy()
    groups = []
    while len(order):
        hit = iou_with_rest(rows, 0) >= np.float32(iou_threshold)
        groups.append([int(order[0]), *order[1:][hit].tolist()])
        rows, order = rows[:, 1:][:, ~hit], order[1:][~hit]
    return groups
