"""Read annotation files in the JSON format of COCO, as columns.

A file is decoded once, types checked, segmentations left as they are. Only if
that fails are its records taken one by one, so that each bad one is named and
the others are kept.
"""

import itertools
import json
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from ._coco_records import CocoRecords, convert_record

__all__ = [
    'CocoAnnotations',
    'CocoCategories',
    'CocoError',
    'CocoFile',
    'CocoImages',
    'read_coco',
]

_KEYS = ('images', 'annotations', 'categories')
NO_SEGMENTATION, POLYGONS, RLE, NEITHER = range(4)


class CocoError(msgspec.Struct, frozen=True):
    """What is wrong with a file.

    Attributes:
        place: ``'annotations[17].bbox'``; empty for the whole file.
        message: What is wrong there.
    """

    place: str
    message: str


class CocoImages(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Columns of ``images``; ``N`` of them could be read.

    Attributes:
        index: ``(N,)``, int64; position in the file.
        id: ``(N,)``, int64.
        width: ``(N,)``, float64; 0 if the file does not say.
        height: ``(N,)``, float64; 0 if the file does not say.
        file_name: ``N`` strings.
    """

    index: np.ndarray
    id: np.ndarray
    width: np.ndarray
    height: np.ndarray
    file_name: tuple[str, ...]


class CocoAnnotations(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Columns of ``annotations``; ``M`` of them could be read.

    Attributes:
        index: ``(M,)``, int64; position in the file.
        id: ``(M,)``, int64.
        image_id: ``(M,)``, int64.
        category_id: ``(M,)``, int64.
        bbox: ``(M, 4)``, float64: left, top, width, height as written, may
            be not finite; NaN where there is none.
        has_bbox: ``(M,)``, bool.
        area: ``(M,)``, float64; NaN where there is none.
        has_area: ``(M,)``, bool.
        iscrowd: ``(M,)``, int64; as written, 0 where it is not.
        ignore: ``(M,)``, bool; marked to be left out of training.
        segmentation_kind: ``(M,)``, uint8: 0 none, null or empty, 1
            polygons (a list), 2 RLE (an object), 3 neither.
        segmentations: ``M``, not decoded; see :meth:`segmentation`.
    """

    index: np.ndarray
    id: np.ndarray
    image_id: np.ndarray
    category_id: np.ndarray
    bbox: np.ndarray
    has_bbox: np.ndarray
    area: np.ndarray
    has_area: np.ndarray
    iscrowd: np.ndarray
    ignore: np.ndarray
    segmentation_kind: np.ndarray
    segmentations: Sequence[Any]

    def segmentation(self, row: int) -> Any:
        """Decode one segmentation.

        Args:
            row: From 0 to ``M - 1``, not the position in the file.

        Returns:
            What :mod:`json` makes of it; None where there is none.

        Raises:
            ValueError: If it holds a number of thousands of digits.
        """
        value = self.segmentations[row]
        if isinstance(value, msgspec.Raw):
            # msgspec has found it well-formed; json agrees with pycocotools
            # on numbers.
            return json.loads(bytes(value) or b'null')
        return value


class CocoCategories(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Columns of ``categories``; ``K`` of them could be read.

    Attributes:
        index: ``(K,)``, int64; position in the file.
        id: ``(K,)``, int64.
        name: ``K`` strings.
    """

    index: np.ndarray
    id: np.ndarray
    name: tuple[str, ...]


class CocoFile(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What an annotation file says.

    Attributes:
        images: Those whose types are right.
        annotations: Those whose types are right.
        categories: Those whose types are right.
        errors: Each record left out of the columns, and what is wrong with
            the file as a whole.
    """

    images: CocoImages
    annotations: CocoAnnotations
    categories: CocoCategories
    errors: tuple[CocoError, ...] = ()


def read_coco(content: bytes) -> CocoFile:
    """Read an annotation file.

    Args:
        content: Bytes of the file.

    Returns:
        Its columns; nothing is raised for damaged files. NaN and Infinity,
        which are no JSON but written by :mod:`json`, are kept.

    Note:
        200 MB a second; files with an error ten times slower. The columns
        refer to ``content`` for segmentations, and keep it in memory.

    Examples:
        >>> file = read_coco(b'{"images": [{"id": 1}], "annotations": []}')
        >>> for error in file.errors:
        ...     print(f'{error.place}: {error.message}')
        images[0]: Object missing required field `file_name`: ['id']
        categories: the key is missing
    """
    indices: dict[str, Sequence[int]] = {}
    errors: list[CocoError] = []
    try:
        # msgspec does not look into texts that nothing asks for.
        if not content.isascii():
            content.decode()
        records = msgspec.json.decode(content, type=CocoRecords)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        records, indices = _one_by_one(content, errors)
    positions = {
        key: np.array(
            indices.get(key, range(len(getattr(records, key)))), np.int64
        )
        for key in _KEYS
    }
    return CocoFile(
        images=_images(records.images, positions['images']),
        annotations=_annotations(
            records.annotations, positions['annotations']
        ),
        categories=CocoCategories(
            index=positions['categories'],
            id=_column(records.categories, 'id', np.int64),
            name=tuple(each.name for each in records.categories),
        ),
        errors=tuple(errors),
    )


def _one_by_one(
    content: bytes, errors: list[CocoError]
) -> tuple[CocoRecords, dict[str, list[int]]]:
    """The records whose types are right, and their positions."""
    records = CocoRecords([], [], [])
    indices: dict[str, list[int]] = {key: [] for key in _KEYS}
    try:
        root = json.loads(content)
    except (ValueError, RecursionError) as error:
        errors.append(CocoError('', f'malformed JSON: {error}'))
        return records, indices
    if not isinstance(root, dict):
        kind = type(root).__name__
        message = f'the top level must be an object, got {kind}'
        errors.append(CocoError('', message))
        return records, indices
    for key in _KEYS:
        values = root.get(key)
        if not isinstance(values, list):
            message = f'must be an array, got {type(values).__name__}'
            if key not in root:
                message = 'the key is missing'
            errors.append(CocoError(key, message))
            continue
        for index, value in enumerate(values):
            record, place, message = convert_record(key, value)
            if record is None:
                errors.append(CocoError(f'{key}[{index}]{place}', message))
            else:
                getattr(records, key).append(record)
                indices[key].append(index)
    return records, indices


def _column(records: list, name: str, dtype: type) -> np.ndarray:
    return np.fromiter(map(attrgetter(name), records), dtype, len(records))


def _images(records: list, index: np.ndarray) -> CocoImages:
    return CocoImages(
        index=index,
        id=_column(records, 'id', np.int64),
        width=_column(records, 'width', np.float64),
        height=_column(records, 'height', np.float64),
        file_name=tuple(each.file_name for each in records),
    )


def _annotations(records: list, index: np.ndarray) -> CocoAnnotations:
    boxes = [each.bbox for each in records]
    areas = [each.area for each in records]
    nothing = (np.nan,) * 4
    flat = itertools.chain.from_iterable(box or nothing for box in boxes)
    segmentations = [each.segmentation for each in records]
    return CocoAnnotations(
        index=index,
        id=_column(records, 'id', np.int64),
        image_id=_column(records, 'image_id', np.int64),
        category_id=_column(records, 'category_id', np.int64),
        bbox=np.fromiter(flat, np.float64, 4 * len(boxes)).reshape(-1, 4),
        has_bbox=_present(boxes),
        # None becomes NaN.
        area=np.array(areas, np.float64),
        has_area=_present(areas),
        iscrowd=_column(records, 'iscrowd', np.int64),
        ignore=_column(records, 'ignore', np.bool_),
        segmentation_kind=_kinds(segmentations),
        segmentations=segmentations,
    )


def _present(values: list) -> np.ndarray:
    flags = (value is not None for value in values)
    return np.fromiter(flags, np.bool_, len(values))


def _kinds(segmentations: list) -> np.ndarray:
    """Kind of each; two bytes tell, but for what may be empty."""
    known = {b'[[': POLYGONS, b'{"': RLE, b'nu': NO_SEGMENTATION}
    kinds = [
        known.get(bytes(each)[:2])
        if type(each) is msgspec.Raw
        else _kind(each)
        for each in segmentations
    ]
    if None in kinds:
        kinds = [
            _kind_of_text(bytes(each)) if kind is None else kind
            for kind, each in zip(kinds, segmentations)
        ]
    return np.array(kinds, np.uint8)


def _kind_of_text(text: bytes) -> int:
    try:
        return _kind(json.loads(text or b'null'))
    # msgspec goes over numbers of any length.
    except (ValueError, RecursionError):
        return NEITHER


def _kind(segmentation: Any) -> int:
    if segmentation is None or segmentation == [] or segmentation == {}:
        return NO_SEGMENTATION
    if isinstance(segmentation, list):
        return POLYGONS
    return RLE if isinstance(segmentation, dict) else NEITHER
