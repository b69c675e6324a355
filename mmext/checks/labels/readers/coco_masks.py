"""Masks of annotations in COCO's format: polygons and run lengths."""

import math
from typing import Any

from .coco import (
    MIN_POLYGON,
    NO_SEGMENTATION,
    POLYGONS,
    RLE,
    CocoAnnotations,
    box_of_polygons,
)

# Five bits a character, from this one on; the sixth says that more follow.
_FIRST = 48
_BITS = 5
_MORE = 0x20
_SIGN = 0x10
_LAST = _FIRST + 63


def read_rle(
    value: dict[str, Any], size: tuple[float, float]
) -> tuple[str, list[int]]:
    """What is wrong with run lengths, and the lengths.

    ``value`` has ``size``, height and width, and ``counts``: lengths, or the
    text that pycocotools makes of them. ``size`` is (height, width) of the
    image, or zeros.
    """
    own, counts = value.get('size'), value.get('counts')
    if (
        not isinstance(own, list)
        or len(own) != 2
        or not all(map(_is_count, own))
    ):
        return f'size of the RLE must be [height, width], got {own!r:.60}', []
    if all(size) and tuple(own) != tuple(size):
        text = f'the image of {size[0]:g} x {size[1]:g}'
        return f'the RLE is of {own[0]} x {own[1]} pixels (h x w), {text}', []
    if isinstance(counts, str):
        lengths = _decoded(counts)
    else:
        lengths = counts if isinstance(counts, list) else None
    if lengths is None or not all(map(_is_count, lengths)):
        return f'counts of the RLE must be lengths, got {counts!r:.60}', []
    if sum(lengths) != own[0] * own[1]:
        text = f'its size is {own[0]} x {own[1]}'
        together = f'{sum(lengths)} pixels together, {text}'
        return f'the counts of the RLE are {together}', []
    return '', lengths


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0 and value is not True


def _decoded(text: str) -> list[int] | None:
    """Lengths of a compressed text; None if it is none."""
    lengths: list[int] = []
    number = shift = 0
    for code in text.encode('utf-8', 'replace'):
        if not _FIRST <= code <= _LAST:
            return None
        bits = code - _FIRST
        number |= (bits & (_MORE - 1)) << shift
        shift += _BITS
        if bits & _MORE:
            continue
        if bits & _SIGN:
            number -= 1 << shift
        # From the fourth on, the difference to the one before the last.
        if len(lengths) > 2:
            number += lengths[-2]
        lengths.append(number)
        number = shift = 0
    return None if shift else lengths


def _box_of_rle(value: dict[str, Any]) -> tuple[float, ...]:
    """Box around the pixels of run lengths that are right."""
    from pycocotools import mask

    if isinstance(value['counts'], list):
        value = mask.frPyObjects(value, *value['size'])
    left, top, width, height = mask.toBbox(value).tolist()
    return left, top, left + width, top + height


def _polygon_error(segmentation: object) -> str:
    """What is wrong with the polygons of an annotation."""
    for index, polygon in enumerate(segmentation):
        if not isinstance(polygon, list) or not all(
            isinstance(number, int | float) for number in polygon
        ):
            return f'polygon {index} is no list of numbers'
        if len(polygon) < MIN_POLYGON or len(polygon) % 2:
            return (
                f'polygon {index} has {len(polygon)} numbers; 3 points or '
                'more, 2 numbers each, are needed'
            )
        if not all(map(_is_finite, polygon)):
            return f'polygon {index} has a number that is not finite'
    return ''


def _is_finite(number: float) -> bool:
    """Whether it is a number for a float, which may be too small for it."""
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def mask_of(
    annotations: CocoAnnotations, row: int, size: tuple[float, float]
) -> tuple[str, tuple[float, ...]]:
    """What is wrong with the mask of an annotation, and the box around it.

    The one is empty if nothing is wrong or there is no mask; the other, in
    pixels, unless there is a good mask. ``size`` is as in :func:`read_rle`.
    """
    kind = annotations.segmentation_kind[row]
    if kind == NO_SEGMENTATION:
        return '', ()
    if annotations.segmentation_fine[row]:
        return '', tuple(annotations.polygon_box[row].tolist())
    try:
        value = annotations.segmentation(row)
    except (ValueError, RecursionError) as error:
        return f'it cannot be decoded: {error}', ()
    if kind == POLYGONS:
        error = _polygon_error(value)
        return error, () if error else box_of_polygons(value)
    if kind == RLE:
        error, lengths = read_rle(value, size)
        if not error and not any(lengths[1::2]):
            error = 'the RLE has no pixel'
        return error, () if error else _box_of_rle(value)
    return 'neither polygons nor RLE', ()
