"""Operators written from their definitions: plain loops, one value at a time.

Boxes and samples are Python numbers or 0-d tensors, so autograd follows what
can be differentiated. Slow on purpose; for a handful of boxes and pixels.
"""

import math

import torch
from torch import Tensor


def iou(a: list[float], b: list[float], offset: int) -> float:
    """Intersection over union of two boxes; NaN where both are empty."""
    width = min(a[2], b[2]) - max(a[0], b[0]) + offset
    height = min(a[3], b[3]) - max(a[1], b[1]) + offset
    inter = max(width, 0) * max(height, 0)
    areas = [(c[2] - c[0] + offset) * (c[3] - c[1] + offset) for c in (a, b)]
    union = sum(areas) - inter
    return inter / union if union else math.nan


def ranked(scores: Tensor) -> list[int]:
    """Indices by falling score, equal ones in their order."""
    return sorted(range(len(scores)), key=lambda i: -float(scores[i]))


def nms(
    boxes: Tensor, scores: Tensor, threshold: float, offset: int = 0
) -> list[int]:
    """Indices of the kept boxes, best first."""
    kept: list[int] = []
    for i in ranked(scores):
        box = boxes[i].tolist()
        if not any(
            iou(boxes[k].tolist(), box, offset) > threshold for k in kept
        ):
            kept.append(i)
    return kept


def nms_match(dets: Tensor, threshold: float) -> list[list[int]]:
    """Kept boxes, each followed by what it suppressed."""
    groups: list[list[int]] = []
    for i in ranked(dets[:, 4]):
        for group in groups:
            first = dets[group[0], :4].tolist()
            if iou(first, dets[i, :4].tolist(), 0) >= threshold:
                group.append(i)
                break
        else:
            groups.append([i])
    return groups


def soft_nms(
    boxes: Tensor,
    scores: Tensor,
    *,
    threshold: float,
    sigma: float,
    min_score: float,
    method: str,
    offset: int = 0,
) -> list[tuple[int, float]]:
    """Index and lowered score of the kept boxes, best first."""
    left = {i: float(score) for i, score in enumerate(scores)}
    kept = []
    while left:
        best = max(left, key=lambda i: left[i])
        kept.append((best, left.pop(best)))
        for i in list(left):
            overlap = iou(boxes[best].tolist(), boxes[i].tolist(), offset)
            if method == 'gaussian':
                left[i] *= math.exp(-(overlap**2) / sigma)
            elif overlap >= threshold:
                left[i] *= 1 - overlap if method == 'linear' else 0
            if left[i] < min_score:
                del left[i]
    return kept


def number(x: float | Tensor) -> float:
    """The value without its gradient."""
    return x.item() if isinstance(x, Tensor) else x


def bilinear(plane: Tensor, y: float | Tensor, x: float | Tensor) -> Tensor:
    """Value of ``(H, W)`` at a position; zero outside the map."""
    total = plane.new_zeros(())
    top, left = math.floor(number(y)), math.floor(number(x))
    for row in (top, top + 1):
        for col in (left, left + 1):
            if 0 <= row < plane.shape[0] and 0 <= col < plane.shape[1]:
                share = (1 - abs(y - row)) * (1 - abs(x - col))
                total = total + share * plane[row, col]
    return total


def roi_sample(plane: Tensor, y: float, x: float) -> Tensor:
    """RoIAlign's border rule: up to a pixel outside, the border is read."""
    height, width = plane.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return plane.new_zeros(())
    return bilinear(
        plane, min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    )


def roi_align(
    maps: Tensor,
    rois: Tensor,
    bins: tuple[int, int],
    *,
    scale: float,
    ratio: int,
    aligned: bool,
) -> Tensor:
    """``(R, C, P, Q)``; an empty bin is zero."""
    out = []
    for roi in rois.tolist():
        shift = 0.5 if aligned else 0
        x1, y1, x2, y2 = (c * scale - shift for c in roi[1:])
        sizes = [y2 - y1, x2 - x1]
        if not aligned:
            sizes = [max(size, 1) for size in sizes]
        step = [size / count for size, count in zip(sizes, bins)]
        grid = [ratio or math.ceil(size) for size in step]
        for plane in maps[int(roi[0])]:
            for p in range(bins[0]):
                for q in range(bins[1]):
                    samples = [
                        roi_sample(
                            plane,
                            y1 + (p + (i + 0.5) / grid[0]) * step[0],
                            x1 + (q + (j + 0.5) / grid[1]) * step[1],
                        )
                        for i in range(grid[0])
                        for j in range(grid[1])
                    ] or [plane.new_zeros(())]
                    out.append(torch.stack(samples).mean())
    return torch.stack(out).view(len(rois), maps.shape[1], *bins)


def deform_conv(
    maps: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    weight: Tensor,
    *,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    deform_groups: int,
) -> Tensor:
    """``(N, O, P, Q)``, every product of the convolution written out."""
    taps = weight.shape[2] * weight.shape[3]
    per_group = maps.shape[1] // groups
    per_deform = maps.shape[1] // deform_groups
    out = []
    for n in range(len(maps)):
        for o in range(len(weight)):
            first = o // (len(weight) // groups) * per_group
            for p in range(offset.shape[2]):
                for q in range(offset.shape[3]):
                    total = maps.new_zeros(())
                    for c in range(first, first + per_group):
                        for k in range(taps):
                            location = c // per_deform * taps + k
                            i, j = divmod(k, weight.shape[3])
                            y = p * stride - padding + i * dilation
                            x = q * stride - padding + j * dilation
                            value = bilinear(
                                maps[n, c],
                                y + offset[n, 2 * location, p, q],
                                x + offset[n, 2 * location + 1, p, q],
                            )
                            if mask is not None:
                                value = value * mask[n, location, p, q]
                            total = total + value * weight[o, c - first, i, j]
                    out.append(total)
    return torch.stack(out).view(len(maps), len(weight), *offset.shape[2:])


def compiled_deform_conv(
    maps: Tensor,
    offset: Tensor,
    mask: Tensor,
    weight: Tensor,
    *,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    deform_groups: int,
) -> Tensor:
    """``(N, O, P, Q)`` as compiled mmcv goes through memory.

    Its loop is over the images, of which each begins where its tensors say;
    inside an image, places are computed from the size of the output.
    """
    channels, *size = maps.shape[1:]
    kernel = weight.shape[2:]
    height, width = (
        (n + 2 * padding - dilation * (k - 1) - 1) // stride + 1
        for n, k in zip(size, kernel)
    )
    taps, plane = kernel[0] * kernel[1], height * width
    images = []
    for image, offsets, masks in zip(maps, offset, mask):
        offsets, masks = offsets.reshape(-1), masks.reshape(-1)
        columns = []
        for c in range(channels):
            group = c // (channels // deform_groups)
            for k in range(taps):
                for at in range(plane):
                    start = group * 2 * taps * plane
                    dy = offsets[start + 2 * k * plane + at]
                    dx = offsets[start + (2 * k + 1) * plane + at]
                    y = at // width * stride - padding
                    x = at % width * stride - padding
                    value = bilinear(
                        image[c],
                        y + k // kernel[1] * dilation + dy,
                        x + k % kernel[1] * dilation + dx,
                    )
                    factor = masks[group * taps * plane + k * plane + at]
                    columns.append(value * factor)
        columns = torch.stack(columns).view(groups, -1, plane)
        kernels = weight.view(groups, len(weight) // groups, -1)
        images.append((kernels @ columns).view(-1, height, width))
    return torch.stack(images)


def sigmoid_focal(
    logits: Tensor,
    target: list[int],
    *,
    gamma: float,
    alpha: float,
    weight: list[float] | None,
) -> Tensor:
    """Loss of every sample and class, ``(N, C)``."""
    rows = []
    for row, label in zip(logits, target):
        for c, logit in enumerate(row):
            p = 1 / (1 + torch.exp(-logit))
            if c == label:
                loss = -alpha * (1 - p) ** gamma * torch.log(p)
            else:
                loss = -(1 - alpha) * p**gamma * torch.log(1 - p)
            rows.append(loss * (weight[label] if weight else 1))
    return torch.stack(rows).view_as(logits)
