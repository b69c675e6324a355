"""Run an exported ONNX file on a picture, and get what the model predicts.

Imports NumPy only, so this file can be copied next to that of the model and
used with onnxruntime alone.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Settings of mmcv's NMS and soft-NMS that are known, and their defaults.
_NMS = {
    **{'type': 'nms', 'iou_threshold': 0.3, 'class_agnostic': False},
    **{'method': 'linear', 'sigma': 0.5, 'min_score': 1e-3, 'split_thr': 0},
}
# And those of the step Pad.
_PAD = {'type', '_scope_', 'size', 'size_divisor', 'pad_val'}

Arrays = dict[str, np.ndarray]


def run_onnx(
    session: Any, image: np.ndarray, *, score_thr: float = 0.3
) -> dict[str, Any]:
    """Predict what is in a picture, as the exported model does.

    A label map whose picture was resized is enlarged by the nearest pixel.

    Args:
        session: ``onnxruntime.InferenceSession`` of a file that
            ``tools/export.py`` wrote.
        image: ``(H, W, 3)``, uint8, red green blue.
        score_thr: Detections of a lower score are left out, in [0, 1].

    Returns:
        ``classes``, the names. Of a detector ``boxes`` ``(N, 4)`` float32, x1
        y1 x2 y2 in pixels of ``image``, ``scores`` ``(N,)`` float32,
        descending, and ``labels`` ``(N,)`` int64; of a segmentor ``labels``
        ``(H, W)`` int64.

    Raises:
        ValueError: If ``image`` is another array, or the file is of an older
            version or needs a resize or an NMS that is not known here.
    """
    if image.dtype != np.uint8 or image.shape[2:] != (3,):
        raise ValueError(
            'image must be a uint8 array (height, width, 3), red green blue, '
            f'got {image.dtype} {image.shape}'
        )
    texts = session.get_modelmeta().custom_metadata_map
    names = [output.name for output in session.get_outputs()]
    if 'completion' not in texts or 'labels' not in names:
        raise ValueError(
            'the file must be written by tools/export.py of this version, got '
            f'outputs {names} and metadata {sorted(texts)}; export the model '
            'again'
        )
    classes, steps, divisor, facts = (
        json.loads(texts[key])
        for key in ('classes', 'resize', 'size_divisor', 'completion')
    )
    pixels, scale = image.transpose(2, 0, 1), np.ones(2)
    for step in steps:
        if step['type'].endswith('Pad') and set(step) <= _PAD:
            pixels = _pad(pixels, step)
        else:
            new = _new_size(pixels.shape[1:], step)
            scale *= np.divide(new, pixels.shape[1:])
            pixels = _resize(pixels, new)
    size, inner = image.shape[:2], pixels.shape[1:]
    is_map = texts['task'] == 'segmentation'
    if is_map:
        padding = {'size_divisor': divisor, 'pad_val': facts['padding']}
        pixels = _pad(pixels, padding)
    else:
        new = [max(1, round(n / divisor)) * divisor for n in inner]
        scale *= np.divide(new, inner)
        pixels = _resize(pixels, new)
    arrays = session.run(None, {'images': np.float32(pixels[None])})
    arrays = {name: array[0] for name, array in zip(names, arrays)}
    if is_map:
        align = facts['align_corners']
        locations = [_locations(*sides, align) for sides in zip(inner, size)]
        nearest = (np.rint(location).astype(int) for location in locations)
        return {
            'classes': classes,
            'labels': arrays['labels'][np.ix_(*nearest)],
        }
    arrays['boxes'] /= np.float32([*scale[::-1], *scale[::-1]])
    arrays = _chosen(arrays, arrays['scores'] > facts['score_thr'])
    arrays = _suppress(arrays, facts['nms']) if facts['nms'] else arrays
    arrays = _chosen(arrays, arrays['scores'] >= score_thr)
    return {'classes': classes, **arrays}


def _chosen(arrays: Arrays, chosen: Any) -> Arrays:
    return {name: array[chosen] for name, array in arrays.items()}


def _new_size(size: Sequence[int], step: Mapping) -> list[int]:
    """Height and width that a step of the test pipeline resizes to."""
    ways = step.get('backend', 'cv2'), step.get('interpolation', 'bilinear')
    kind = step['type'].rpartition('.')[2]
    if (kind, *ways) != ('Resize', 'cv2', 'bilinear'):
        raise ValueError(
            'resize of the file must be Resize, bilinear, by cv2, or Pad to '
            f'a size, got {step}; resize the picture yourself, and run the '
            'session'
        )
    if step.get('scale') is None:
        factors = np.broadcast_to(step['scale_factor'], 2)[::-1]
        new = [int(n * factor + 0.5) for n, factor in zip(size, factors)]
    else:
        new = np.broadcast_to(step['scale'], 2)[::-1].tolist()
    if not step.get('keep_ratio'):
        return new
    factor = min(max(new) / max(size), min(new) / min(size))
    return [int(side * factor + 0.5) for side in size]


def _pad(pixels: np.ndarray, step: Mapping) -> np.ndarray:
    """Fill up at the bottom and on the right, as mmcv's Pad does."""
    height, width = pixels.shape[1:]
    least, divisor = step.get('size') or (0, 0), step.get('size_divisor') or 1
    color = step.get('pad_val', 0)
    color = color.get('img', 0) if isinstance(color, dict) else color
    new = max(height, least[1]), max(width, least[0])
    padded = np.empty((3, *(side + -side % divisor for side in new)))
    # Blue green red in a config.
    padded.T[:] = np.broadcast_to(color, 3)[::-1]
    padded[:, :height, :width] = pixels
    return padded


def _locations(old: int, new: int, align_corners: bool = False) -> np.ndarray:
    """Where the pixels of a side lie among those of the old one."""
    if align_corners:
        return np.linspace(0, old - 1, new)
    return ((np.arange(new) + 0.5) * old / new - 0.5).clip(0, old - 1)


def _resize(pixels: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Bilinear, ``(3, H, W)``, in the whole numbers of OpenCV."""
    pixels = pixels.astype(int)
    y, x = (_locations(*sides) for sides in zip(pixels.shape[1:], size))
    top, left = y.astype(int), x.astype(int)
    bottom, right = np.ceil(y).astype(int), np.ceil(x).astype(int)
    part = np.rint((x - left) * 2048).astype(int)
    rows = pixels[..., left] * (2048 - part) + pixels[..., right] * part >> 4
    part = np.rint((y - top) * 2048).astype(int)[:, None]
    above, below = rows[:, top] * (2048 - part), rows[:, bottom] * part
    return (above >> 16) + (below >> 16) + 2 >> 2


def _suppress(arrays: Arrays, nms: Mapping[str, Any]) -> Arrays:
    """What NMS or soft-NMS of mmcv keeps, best first, with its scores."""
    settings = {**_NMS, **nms}
    soft = settings['type'] == 'soft_nms'
    if len(settings) > len(_NMS) or not (soft or settings['type'] == 'nms'):
        raise ValueError(
            "nms of the file must be 'nms' or 'soft_nms' with settings of "
            f'{", ".join(_NMS)}, got {nms}; run the session, and your own NMS'
        )
    method = settings['method'] if soft else 'naive'
    boxes, labels = arrays['boxes'], arrays['labels']
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    scores, kept, left = arrays['scores'].copy(), [], np.arange(len(boxes))
    while len(left):
        best = left[scores[left].argmax()]
        kept.append(best)
        left = left[left != best]
        low = np.maximum(boxes[best, :2], boxes[left, :2])
        high = np.minimum(boxes[best, 2:], boxes[left, 2:])
        both = (high - low).clip(0).prod(1)
        iou = both / np.maximum(areas[best] + areas[left] - both, 1e-12)
        weights = 1 - iou if method == 'linear' else 0 * iou
        weights[iou < settings['iou_threshold']] = 1
        if method == 'gaussian':
            weights = np.exp(-(iou**2) / settings['sigma'])
        if not settings['class_agnostic']:
            weights[labels[left] != labels[best]] = 1
        scores[left] *= weights
        left = left[scores[left] >= (settings['min_score'] if soft else 1e-30)]
    return {**_chosen(arrays, kept), 'scores': scores[kept]}
