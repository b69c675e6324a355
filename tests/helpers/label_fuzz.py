"""Damaged files, and what of them a loader could still make sense of.

The judges here are slow and simple, and share no code with the checker.
"""

import json
import math
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np


def fuzz(content: bytes, random: np.random.Generator) -> bytes:
    """Cut a file off, flip some of its bits, or put other bytes in place."""
    kind = random.random()
    if kind < 0.35:
        return content[: int(random.integers(1, len(content)))]
    if kind < 0.8:
        changed = bytearray(content)
        for at in random.integers(0, len(content), random.integers(1, 4)):
            changed[at] ^= 1 << int(random.integers(8))
        return bytes(changed)
    if kind < 0.95:
        return random.bytes(int(random.integers(1, 300)))
    return b''


def _is_id(value: object) -> bool:
    return type(value) is int and abs(value) < 1 << 63


def _inside(box: Sequence[float], width: float, height: float) -> bool:
    """Whether a box of corners has an area and is in its image."""
    x1, y1, x2, y2 = box
    return (
        all(map(math.isfinite, box))
        and 0 <= x1 <= x2 - 1
        and 0 <= y1 <= y2 - 1
        and x2 <= width
        and y2 <= height
    )


def _numbers(values: object, number: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == number
        and all(type(value) in (int, float) for value in values)
    )


def plausible_coco(content: bytes, classes: Sequence[str]) -> bool:
    """Whether nothing in an annotation file says that it is damaged.

    Names of files, polygons and what is left out by default may be others
    than they were: no tool can know.
    """
    try:
        root = json.loads(content)
        images = {image['id']: image for image in root['images']}
        kinds = {image['id']: image['name'] for image in root['categories']}
        notes = root['annotations']
        sizes = {
            key: (image['width'], image['height'])
            for key, image in images.items()
        }
        return (
            all(map(_is_id, [*images, *kinds]))
            and len(images) == len(root['images'])
            and list(kinds.values()) == list(classes)
            and len({image['id'] for image in notes}) == len(notes)
            and all(
                isinstance(image['file_name'], str)
                for image in images.values()
            )
            and all(_plausible_note(image, sizes, kinds) for image in notes)
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return False


def _plausible_note(note: dict, sizes: dict, kinds: dict) -> bool:
    if not _is_id(note['id']) or not _numbers(note['bbox'], 4):
        return False
    width, height = sizes[note['image_id']]
    left, top, wide, high = note['bbox']
    return (
        note['category_id'] in kinds
        and _inside((left, top, left + wide, top + high), width, height)
        and note['area'] > 0
        and not note.get('ignore')
    )


def plausible_voc(
    content: bytes, name: str, classes: Sequence[str], size: tuple[int, int]
) -> bool:
    """The same of an XML file that was written for an image."""
    try:
        root = ElementTree.fromstring(content)
        if root.tag != 'annotation' or root.findtext('filename') != name:
            return False
        noted = tuple(
            int(root.findtext(f'size/{side}')) for side in ('width', 'height')
        )
        return noted == size and all(
            item.findtext('name') in classes
            # The loader takes any whole number.
            and int(item.findtext('difficult')) is not None
            and _inside(
                [
                    float(item.findtext(f'bndbox/{side}'))
                    for side in ('xmin', 'ymin', 'xmax', 'ymax')
                ],
                *size,
            )
            for item in root.iterfind('object')
        )
    except (ElementTree.ParseError, LookupError, TypeError, ValueError):
        return False
