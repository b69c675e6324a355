"""Operators as one writes them without a backend, for comparing speed.

Used where mmcv has no compiled operator to compare with. All are right and
differentiable where the operator is.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def iou_with(box: Tensor, boxes: Tensor) -> Tensor:
    """IoU of one box ``(4,)`` with ``(N, 4)``."""
    low = torch.maximum(box[:2], boxes[:, :2])
    high = torch.minimum(box[2:], boxes[:, 2:])
    inter = (high - low).clamp(min=0).prod(1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return inter / ((box[2:] - box[:2]).prod() + areas - inter)


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """A loop over the kept boxes."""
    order = scores.argsort(descending=True)
    kept = []
    while len(order):
        kept.append(order[0])
        overlap = iou_with(boxes[order[0]], boxes[order[1:]])
        order = order[1:][overlap <= threshold]
    return torch.stack(kept)


def soft_nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """A loop over all boxes; linear, with mmcv's lowest score."""
    scores, index = scores.clone(), torch.arange(len(scores))
    kept = []
    while len(index):
        best = scores[index].argmax()
        first = index[best]
        kept.append(first)
        index = torch.cat([index[:best], index[best + 1 :]])
        overlap = iou_with(boxes[first], boxes[index])
        lowered = torch.where(overlap >= threshold, 1 - overlap, 1)
        scores[index] *= lowered
        index = index[scores[index] >= 1e-3]
    return torch.stack(kept)


def roi_align(maps: Tensor, rois: Tensor, bins: int, scale: float) -> Tensor:
    """One ``grid_sample`` per region; aligned, adaptive sampling."""
    size = maps.new_tensor(maps.shape[:1:-1])
    out = []
    for roi in rois:
        start, end = roi[1:3] * scale - 0.5, roi[3:] * scale - 0.5
        width = (end - start) / bins
        x, y = (
            start[axis]
            + torch.arange(bins)[:, None] * width[axis]
            + (torch.arange(n) + 0.5) * width[axis] / n
            for axis, n in enumerate(width.ceil().int().clamp(min=1).tolist())
        )
        grid = torch.stack(
            torch.meshgrid(y.flatten(), x.flatten(), indexing='ij')[::-1], -1
        )
        grid = (grid.clamp(min=0) * 2 + 1) / size - 1
        sampled = F.grid_sample(
            maps[int(roi[0])][None],
            grid[None],
            padding_mode='border',
            align_corners=False,
        )
        out.append(F.avg_pool2d(sampled, (y.shape[1], x.shape[1]))[0])
    return torch.stack(out)


def deform_conv(
    maps: Tensor, offset: Tensor, mask: Tensor, weight: Tensor
) -> Tensor:
    """One ``grid_sample`` for each of the nine kernel positions."""
    height, width = maps.shape[2:]
    y, x = torch.meshgrid(
        torch.arange(height), torch.arange(width), indexing='ij'
    )
    size = maps.new_tensor([width, height])
    total = 0
    for k in range(9):
        locations = torch.stack(
            [
                x + k % 3 - 1 + offset[:, 2 * k + 1],
                y + k // 3 - 1 + offset[:, 2 * k],
            ],
            -1,
        )
        grid = (locations * 2 + 1) / size - 1
        sampled = F.grid_sample(maps, grid, align_corners=False)
        sampled = sampled * mask[:, k, None]
        kernel = weight[:, :, k // 3, k % 3]
        total = total + torch.einsum('nchw,oc->nohw', sampled, kernel)
    return total


def sigmoid_focal(logits: Tensor, target: Tensor) -> Tensor:
    """The formula, left to autograd."""
    onehot = F.one_hot(target, logits.shape[1] + 1)[:, :-1].to(logits)
    p = logits.sigmoid()
    miss = p * (1 - onehot) + (1 - p) * onehot
    alpha = 0.25 * onehot + 0.75 * (1 - onehot)
    entropy = F.binary_cross_entropy_with_logits(
        logits, onehot, reduction='none'
    )
    return (alpha * miss**2 * entropy).sum()
