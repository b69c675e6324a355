"""Read panoptic annotation files of COCO: segments, a PNG for each image."""

import json
import re
from typing import BinaryIO

import msgspec
import numpy as np

from ..facts import RecordError, SegmentFacts
from .coco import CocoFile, number_ids, read_coco

_BLOCK = 1 << 20
_ROW = re.compile(r'annotations\[(\d+)\](.*)', re.DOTALL)


class PanopticFile(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a panoptic annotation file says."""

    # Its segments as annotations, with ids of their own; their index is that
    # of the image's record.
    coco: CocoFile
    # For the id of each image, what its PNG must hold.
    segments: dict[int, tuple[SegmentFacts, ...]] = {}
    maps: dict[int, str] = {}  # For the id of each image, the name of its PNG.


def holds_key(file: BinaryIO, name: str = 'segments_info') -> bool:
    """Whether a JSON file has a key; by default that of panoptic files."""
    key, text = f'"{name}"'.encode(), b''
    file.seek(0)
    while block := file.read(_BLOCK):
        text = text[-len(key) :] + block
        if key in text:
            return True
    return False


def read_panoptic(content: bytes) -> PanopticFile:
    """Read an annotation file; nothing is raised for damaged files."""
    try:
        root = json.loads(content.decode())
    except (ValueError, RecursionError):
        root = None
    if not isinstance(root, dict):
        # The other reader says what is wrong with it.
        return PanopticFile(coco=read_coco(content))
    ids: dict[int, str | float] = {}
    number_ids(root, ids)
    errors: list[RecordError] = []
    rows: list[dict] = []
    locations: list[tuple[int, int]] = []
    segments: dict[int, tuple[SegmentFacts, ...]] = {}
    maps: dict[int, str] = {}
    for index, note in enumerate(_records(root, 'annotations')):
        image = note.get('image_id')
        parts = _records(note, 'segments_info')
        if not isinstance(note.get('segments_info'), list):
            message = 'segments_info must be an array'
            errors.append(RecordError(f'annotations[{index}]', message))
        for number, part in enumerate(parts):
            own = {'id': len(rows), 'image_id': image, 'keypoints': None}
            rows.append({**part, **own})
            locations.append((index, number))
        if isinstance(image, int):
            segments[image] = (
                *segments.get(image, ()),
                *_segments(parts, index, errors),
            )
            maps[image] = str(note.get('file_name') or '')
    root['annotations'] = rows
    number_ids(root, ids)
    things = {
        kind['name']: bool(kind['isthing'])
        for kind in _records(root, 'categories')
        if 'isthing' in kind and isinstance(kind.get('name'), str)
    }
    file = read_coco(json.dumps(root).encode())
    file = msgspec.structs.replace(file, ids=ids, things=things)
    return PanopticFile(
        coco=_replaced(file, locations, errors),
        segments=segments,
        maps=maps,
    )


def _records(owner: dict, key: str) -> list[dict]:
    """Objects of an array; anything else is an object without keys."""
    values = owner.get(key)
    if not isinstance(values, list):
        return []
    return [value if isinstance(value, dict) else {} for value in values]


def _segments(
    parts: list[dict], index: int, errors: list[RecordError]
) -> list[SegmentFacts]:
    """Segments of an image whose ids are numbers."""
    segments = []
    for number, part in enumerate(parts):
        location = f'annotations[{index}].segments_info[{number}]'
        value, area = part.get('id'), part.get('area')
        if type(value) is not int:
            message = (
                f'the id of the segment must be an int, got {value!r:.60}'
            )
            errors.append(RecordError(f'{location}.id', message))
            continue
        known = type(area) in (int, float) and area == area
        segments.append(
            SegmentFacts(
                id=value,
                area=float(area) if known else -1.0,
                location=location,
            )
        )
    return segments


def _replaced(
    file: CocoFile,
    locations: list[tuple[int, int]],
    errors: list[RecordError],
) -> CocoFile:
    """The file with the locations that segments have in it."""
    results = list(errors)
    for error in file.errors:
        row = _ROW.fullmatch(error.location)
        if row:
            index, number = locations[int(row[1])]
            location = f'annotations[{index}].segments_info[{number}]{row[2]}'
            error = RecordError(location, error.message)
        results.append(error)
    owners = np.array([index for index, _ in locations], np.int64)
    notes = file.annotations
    return msgspec.structs.replace(
        file,
        annotations=msgspec.structs.replace(
            notes, index=owners[notes.index] if len(owners) else notes.index
        ),
        errors=tuple(results),
    )
