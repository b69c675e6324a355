"""Write what a detector found: pictures and a JSON file."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from pycocotools import mask as coco_mask

from ..utils.files import atomic_path
from .draw import class_palette, draw_instances
from .infer import Detections

__all__ = ['detections_to_dict', 'draw_detections', 'write_predictions']


def draw_detections(
    found: Detections,
    classes: Sequence[str],
    *,
    palette: Sequence[Sequence[int]] | str | None = None,
    side: int | None = None,
) -> np.ndarray:
    """Draw what was found in an image.

    Args:
        found: From :func:`~mmext.apis.infer_images`.
        classes: The class names.
        palette: Colours of the data set, see
            :func:`~mmext.apis.draw.class_palette`.
        side: Length in pixels that the longer side of the picture shall
            have at most. By default small images are enlarged, see
            :func:`~mmext.apis.draw.picture_scale`, and none is shrunk.

    Returns:
        ``(H, W, 3)``, uint8, red green blue.

    Raises:
        ValueError: If a label has no class name.
    """
    size = {} if side is None else {'side': side, 'shrink': True}
    return draw_instances(
        found.image,
        found.boxes,
        found.labels,
        classes=classes,
        scores=found.scores,
        masks=found.masks,
        palette=class_palette(len(classes), palette),
        **size,
    )


def _encode_mask(mask: np.ndarray) -> dict:
    code = coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    return {'size': code['size'], 'counts': code['counts'].decode('ascii')}


def detections_to_dict(
    found: Detections, classes: Sequence[str], *, picture: str | None = None
) -> dict:
    """Put what was found in an image into plain lists.

    Args:
        found: From :func:`~mmext.apis.infer_images`.
        classes: The class names.
        picture: File name of the picture drawn of it.

    Returns:
        A dict with the keys

        * ``image``: the image file;
        * ``picture``: the drawn picture, or None;
        * ``width``, ``height``: of the image in pixels;
        * ``boxes``: x1 y1 x2 y2 in pixels of the image, to 1/1000;
        * ``scores``: in [0, 1], to six digits, highest first;
        * ``labels``: indices of the class names;
        * ``names``: the class names;
        * ``masks``: COCO run lengths, only from models that give masks.
    """
    height, width = found.image.shape[:2]
    result = {
        'image': str(found.path),
        'picture': picture,
        'width': width,
        'height': height,
        'boxes': [
            [round(float(value), 3) for value in box] for box in found.boxes
        ],
        'scores': [round(float(score), 6) for score in found.scores],
        'labels': [int(label) for label in found.labels],
        'names': [classes[label] for label in found.labels],
    }
    if found.masks is not None:
        result['masks'] = [_encode_mask(mask) for mask in found.masks]
    return result


def write_predictions(
    path: str | Path,
    images: Iterable[dict],
    *,
    classes: Sequence[str],
    score_thr: float,
    failed: Iterable[dict] = (),
) -> None:
    """Write predictions as JSON, whole or not at all.

    The file holds one object: ``classes``, ``score_thr``, ``images`` (see
    :func:`detections_to_dict`) and ``failed``, a list of ``image`` and
    ``reason``.

    Args:
        path: The file; an older one is replaced, missing folders are made.
        images: One dict per image.
        classes: The class names.
        score_thr: Objects of a lower score were left out.
        failed: Images that could not be read.
    """
    content = {
        'classes': list(classes),
        'score_thr': score_thr,
        'images': list(images),
        'failed': list(failed),
    }
    with atomic_path(path) as temporary:
        temporary.write_text(
            json.dumps(content, ensure_ascii=False, allow_nan=False) + '\n',
            encoding='utf-8',
        )
