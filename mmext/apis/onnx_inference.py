"""Run an exported ONNX file on a picture, and get what the model predicts.

Imports NumPy only, so this file can be copied next to that of the model and
used with onnxruntime alone.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ['run_onnx']

_NMS_KEYS = {'type', 'iou_threshold', 'class_agnostic', 'split_thr'}
_SOFT_NMS_KEYS = _NMS_KEYS | {'sigma', 'min_score', 'method'}

Arrays = Mapping[str, np.ndarray]


def run_onnx(
    session: Any, image: np.ndarray, *, score_thr: float = 0.3
) -> dict[str, Any]:
    """Predict what is in a picture, as the exported model does.

    The picture is resized as in the test pipeline; NMS and score threshold of
    the config, and the way back to the size of the picture, are done here. A
    label map is enlarged by the nearest pixel, or exactly as the model does
    it if the file gives the scores of all classes (``--all-scores``).

    Args:
        session: ``onnxruntime.InferenceSession`` of a file that
            ``tools/export.py`` wrote; of a detector without ``--all-scores``.
        image: ``(H, W, 3)``, uint8, red green blue.
        score_thr: Detections of a lower score are left out, in [0, 1].

    Returns:
        ``classes``, the names. Of a detector ``boxes`` ``(N, 4)`` float32, x1
        y1 x2 y2 in pixels of ``image``, ``scores`` ``(N,)`` float32,
        descending, ``labels`` ``(N,)`` int64, and ``masks`` ``(N, H, W)``
        bool if the file has them; of a segmentor ``labels`` ``(H, W)`` int64.

    Raises:
        ValueError: If ``image`` is another array, or the file is of an older
            version or needs a resize or an NMS that is not known here.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(
            'image must be a uint8 array (height, width, 3), red green blue, '
            f'got {image.dtype} {image.shape}'
        )
    texts = session.get_modelmeta().custom_metadata_map
    names = [output.name for output in session.get_outputs()]
    if 'completion' not in texts or names == ['boxes', 'scores']:
        raise ValueError(
            'the file must be written by tools/export.py of this version, of '
            f'a detector without --all-scores, got outputs {names} and '
            f'metadata {sorted(texts)}; export the model again'
        )
    steps, divisor, facts = (
        json.loads(texts[key])
        for key in ('resize', 'size_divisor', 'completion')
    )
    pixels = image.transpose(2, 0, 1).astype(int)
    for step in steps:
        pixels = _resize(pixels, _new_size(pixels.shape[1:], step))
    inner = pixels.shape[1:]
    is_map = texts['task'] == 'segmentation'
    if is_map:
        # As the model pads, at the bottom and on the right.
        padded = np.empty((3, *(n + -n % divisor for n in inner)), np.float32)
        padded.T[:] = facts['padding']
        padded[:, : inner[0], : inner[1]] = pixels
        pixels = padded
    else:
        inner = [max(1, round(n / divisor)) * divisor for n in inner]
        pixels = _resize(pixels, inner)
    arrays = session.run(None, {'images': np.float32(pixels[None])})
    found = {name: array[0] for name, array in zip(names, arrays)}
    size = image.shape[:2]
    if is_map:
        found = {'labels': _label_map(found, inner, size, facts)}
    else:
        scale = [new / old for old, new in zip(size, inner)]
        found['boxes'] /= np.float32([*scale[::-1], *scale[::-1]])
        found = _of(found, found['scores'] > facts['score_thr'])
        found = _suppress(found, **facts['nms']) if facts['nms'] else found
        found = _of(found, found['scores'] >= score_thr)
    if 'masks' in found:
        pasted = [
            _paste(mask, box, size) >= facts['mask_threshold']
            for mask, box in zip(found['masks'], found['boxes'])
        ]
        found['masks'] = np.array(pasted, bool).reshape(-1, *size)
    return {'classes': json.loads(texts['classes']), **found}


def _of(found: Arrays, kept: Any) -> dict[str, np.ndarray]:
    return {name: array[kept] for name, array in found.items()}


def _new_size(size: Sequence[int], step: Mapping) -> list[int]:
    """Height and width that a step of the test pipeline resizes to."""
    ways = step.get('backend', 'cv2'), step.get('interpolation', 'bilinear')
    kind = step['type'].rpartition('.')[2]
    if (kind, *ways) != ('Resize', 'cv2', 'bilinear'):
        raise ValueError(
            'resize of the file must be of type Resize, bilinear, by cv2, got '
            f'{step}; resize the picture yourself and run the session'
        )
    scale = step.get('scale')
    if scale is None:
        factors = np.broadcast_to(step['scale_factor'], 2)
        scale = [int(n * f + 0.5) for n, f in zip(size[::-1], factors)]
    width, height = np.broadcast_to(scale, 2).tolist()
    if not step.get('keep_ratio'):
        return [height, width]
    long, short = max(width, height), min(width, height)
    factor = min(long / max(size), short / min(size))
    return [int(side * factor + 0.5) for side in size]


def _taps(old: int, new: int, align: bool = False) -> tuple:
    """For each pixel of a side the two old ones, and the second's weight."""
    places = ((np.arange(new) + 0.5) * old / new - 0.5).clip(0, old - 1)
    if align:
        places = np.linspace(0, old - 1, new)
    low = places.astype(int)
    return low, np.minimum(low + 1, old - 1), places - low


def _resize(pixels: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Bilinear, ``(3, H, W)``, in whole numbers as OpenCV does it."""
    low, high, part = _taps(pixels.shape[2], size[1])
    part = np.rint(part * 2048).astype(int)
    rows = pixels[..., low] * (2048 - part) + pixels[..., high] * part >> 4
    low, high, part = _taps(pixels.shape[1], size[0])
    part = np.rint(part * 2048).astype(int)[:, None]
    rows = (rows[:, low] * (2048 - part) >> 16) + (rows[:, high] * part >> 16)
    return rows + 2 >> 2


def _label_map(
    found: Arrays, inner: Sequence[int], size: Sequence[int], facts: Mapping
) -> np.ndarray:
    """Classes of the pixels of the picture."""
    taps = [
        _taps(old, new, facts['align_corners'])
        for old, new in zip(inner, size)
    ]
    if 'labels' in found:
        nearest = (np.where(part < 0.5, a, b) for a, b, part in taps)
        return found['labels'][np.ix_(*nearest)]
    # Logits but for a number that all classes of a pixel share.
    logits = np.log(np.maximum(found['scores'], np.finfo(np.float32).tiny))
    for axis, (low, high, part) in zip((1, 2), taps):
        part = np.float32(part[:, None] if axis == 1 else part)
        logits = logits.take(low, axis) * (1 - part) + (
            logits.take(high, axis) * part
        )
    return logits.argmax(0)


def _paste(mask: np.ndarray, box: np.ndarray, size: Sequence[int]) -> Any:
    """Probabilities of a box as those of the picture, bilinear."""
    shares = []
    for low, high, num in zip(box[1::-1], box[:1:-1], size):
        places = (np.arange(num) + 0.5 - low) / max(high - low, 1e-6)
        apart = places[:, None] * len(mask) - 0.5 - np.arange(len(mask))
        shares.append((1 - np.abs(apart)).clip(0))
    return shares[0] @ mask @ shares[1].T


def _suppress(found: Arrays, **nms: Any) -> dict[str, np.ndarray]:
    """What NMS or soft-NMS of mmcv keeps, best first, with its scores."""
    soft = nms.get('type') == 'soft_nms'
    known = _SOFT_NMS_KEYS if soft else _NMS_KEYS
    if nms.get('type', 'nms') not in ('nms', 'soft_nms') or set(nms) - known:
        raise ValueError(
            "nms of the file must be 'nms' or 'soft_nms' with the settings "
            f'{sorted(_SOFT_NMS_KEYS)}, got {nms}; run the session, and an '
            'NMS of your own'
        )
    method = nms.get('method', 'linear') if soft else 'naive'
    lowest = nms.get('min_score', 1e-3) if soft else 1e-30
    boxes, scores, labels = (
        found[name] for name in ('boxes', 'scores', 'labels')
    )
    scores, areas = scores.copy(), (boxes[:, 2:] - boxes[:, :2]).prod(1)
    kept, left = [], np.arange(len(scores))
    while len(left):
        best = left[scores[left].argmax()]
        kept.append(best)
        left = left[left != best]
        low = np.maximum(boxes[best, :2], boxes[left, :2])
        high = np.minimum(boxes[best, 2:], boxes[left, 2:])
        both = (high - low).clip(0).prod(1)
        iou = both / np.maximum(areas[best] + areas[left] - both, 1e-12)
        weights = 1 - iou if method == 'linear' else np.zeros_like(iou)
        weights[iou < nms.get('iou_threshold', 0.3)] = 1
        if method == 'gaussian':
            weights = np.exp(-(iou**2) / nms.get('sigma', 0.5))
        if not nms.get('class_agnostic'):
            weights[labels[left] != labels[best]] = 1
        scores[left] *= weights
        left = left[scores[left] >= lowest]
    return {**_of(found, kept), 'scores': scores[kept]}
