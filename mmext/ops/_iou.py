"""Intersection over union, as the compiled NMS kernels compute it.

``boxes`` is here always the array of :func:`box_rows`: one row per
coordinate, so that each step of the arithmetic reads contiguous memory.
Widths and heights are ``x2 - x1 + offset``; a negative overlap counts as
zero. Where both areas are zero the result is NaN, and NaN suppresses nothing.

Source: Neubeck and Van Gool, Efficient Non-Maximum Suppression, ICPR 2006
"""

import numpy as np
import torch
from torch import Tensor

from ._precision import widen

__all__ = ['box_rows', 'iou_matrix', 'iou_with_rest']


def box_rows(boxes: Tensor, offset: int) -> Tensor:
    """Store boxes by coordinate, with their areas.

    Args:
        boxes: ``(N, 4)``, x1 y1 x2 y2 in pixels.
        offset: 0 or 1, added to widths and heights.

    Returns:
        ``(5, N)``, contiguous: x1, y1, x2, y2, area; float64 for float64
        boxes, else float32.
    """
    x1, y1, x2, y2 = widen(boxes).unbind(1)
    area = (x2 - x1 + offset) * (y2 - y1 + offset)
    return torch.stack([x1, y1, x2, y2, area])


def iou_matrix(boxes: Tensor, others: Tensor, offset: int) -> Tensor:
    """IoU of every box with every other.

    Args:
        boxes: ``(5, N)``, see :func:`box_rows`.
        others: ``(5, M)``.
        offset: 0 or 1.

    Returns:
        ``(N, M)``.
    """
    x1, y1, x2, y2, area = boxes[:, :, None]
    width = torch.minimum(x2, others[2])
    width -= torch.maximum(x1, others[0])
    height = torch.minimum(y2, others[3])
    height -= torch.maximum(y1, others[1])
    if offset:
        width += offset
        height += offset
    # In place: on the CPU the time goes into memory.
    inter = width.clamp_(min=0)
    inter *= height.clamp_(min=0)
    union = torch.add(area, others[4], out=height)
    union -= inter
    inter /= union
    return inter


def iou_with_rest(boxes: np.ndarray, offset: int) -> np.ndarray:
    """IoU of the first box with all that follow it.

    Args:
        boxes: ``(5, N)``, see :func:`box_rows`.
        offset: 0 or 1.

    Returns:
        ``(N - 1,)``.
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
