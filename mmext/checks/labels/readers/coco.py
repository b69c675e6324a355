"""Read annotation files in the JSON format of COCO, as columns.

A file is decoded at once, types checked; of segmentations only the box around
polygons is kept. Only if that fails are its records taken one by one, so that
each bad one is named and the others are kept. Of a panoptic file, each segment
is an annotation.
"""

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Annotated, Any, BinaryIO
from urllib.parse import urlsplit

import msgspec
import numpy as np

from ..facts import ErrorKind, RecordError, SegmentFacts

_MAX_SHOWN = 60
# Stands for the first id that is no number; those of others follow below.
_OTHER_IDS = -(1 << 62)

Id = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class RawImage(msgspec.Struct, gc=False):
    """One of ``images``; LVIS has lists, and a URL in place of a name."""

    id: Id
    file_name: str = ''
    width: float = 0
    height: float = 0
    coco_url: str = ''
    neg_category_ids: list[Id] | None = None
    not_exhaustive_category_ids: list[Id] | None = None

    def __post_init__(self) -> None:
        if not self.file_name:
            # LVIS has http://images.cocodataset.org/train2017/1.jpg alone.
            self.file_name = urlsplit(self.coco_url).path.lstrip('/')
        if not self.file_name:
            raise ValueError('Object missing required field `file_name`')


class RawAnnotation(msgspec.Struct, gc=False):
    """One of ``annotations``; its segmentation is not decoded."""

    id: Id
    image_id: Id
    category_id: Id
    bbox: tuple[float, float, float, float] | None = None
    area: float | None = None
    iscrowd: Id | bool | None = None
    ignore: Id | bool = 0
    keypoints: Any = None
    segmentation: msgspec.Raw = msgspec.Raw()


class RawCategory(msgspec.Struct, gc=False):
    """One of ``categories``."""

    id: Id
    name: str
    keypoints: list | dict | None = None


class _Root(msgspec.Struct, gc=False):
    images: list[RawImage]
    annotations: list[RawAnnotation]
    categories: list[RawCategory]


_KINDS = {
    'images': RawImage,
    'annotations': RawAnnotation,
    'categories': RawCategory,
}
NO_SEGMENTATION, POLYGONS, RLE, NEITHER = range(4)
_SHAPE = msgspec.json.Decoder(list[list[float]] | dict | None)
_NO_BOX = (np.nan,) * 4
# Segmentations whose boxes are computed at once.
_AT_ONCE = 128
# Three points have six numbers.
MIN_POLYGON = 6
# Five bits a character, from this one on; the sixth says that more follow.
_FIRST = 48
_BITS = 5
_MORE = 0x20
_SIGN = 0x10
_LAST = _FIRST + 63


class CocoImages(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Columns of ``images``; ``N`` of them could be read."""

    index: np.ndarray  # (N,), int64; position in the file.
    id: np.ndarray  # (N,), int64.
    width: np.ndarray  # (N,), float64; 0 if the file does not say.
    height: np.ndarray  # (N,), float64; 0 if the file does not say.
    file_name: tuple[str, ...]  # N strings.
    # (L, 3), int64; index, 1 for neg_category_ids or 0 for
    # not_exhaustive_category_ids, and an id in it.
    listed: np.ndarray


class CocoAnnotations(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Columns of ``annotations``; ``M`` of them could be read."""

    index: np.ndarray  # (M,), int64; position in the file.
    id: np.ndarray  # (M,), int64.
    image_id: np.ndarray  # (M,), int64.
    category_id: np.ndarray  # (M,), int64.
    # (M, 4), float64: left, top, width, height as written, may be not finite;
    # NaN where there is none.
    bbox: np.ndarray
    has_bbox: np.ndarray  # (M,), bool.
    area: np.ndarray  # (M,), float64; NaN where there is none.
    has_area: np.ndarray  # (M,), bool.
    iscrowd: np.ndarray  # (M,), int64; as written, 0 where it is not.
    has_iscrowd: np.ndarray  # (M,), bool.
    ignore: np.ndarray  # (M,), bool; marked to be left out of training.
    # (M,), uint8: 0 none, null or empty, 1 polygons (a list), 2 RLE (an
    # object), 3 neither.
    segmentation_kind: np.ndarray
    # (M,), bool: there is none, or each polygon has an even number of finite
    # numbers, 6 or more; False where this was not found out.
    segmentation_fine: np.ndarray
    # (M, 4), float64: left, top, right and bottom of polygons, in pixels,
    # where they are fine; else NaN.
    polygon_box: np.ndarray
    # (K, 6), float64: index, how many numbers (1 if they are none), and the
    # box around points with v > 0; NaN without.
    keypoints: np.ndarray
    segmentations: Sequence[msgspec.Raw]  # M, not decoded; see segmentation.

    def segmentation(self, row: int) -> Any:
        """One segmentation, as :mod:`json` decodes it; None if there is none.

        Raises ValueError if it holds a number of thousands of digits.
        """
        # json agrees with pycocotools on numbers.
        return json.loads(bytes(self.segmentations[row]) or b'null')


class CocoCategories(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Columns of ``categories``; ``K`` of them could be read."""

    index: np.ndarray  # (K,), int64; position in the file.
    id: np.ndarray  # (K,), int64.
    name: tuple[str, ...]  # K strings.
    num_keypoints: np.ndarray  # (K,), int64; 0 if the file does not say.


class CocoFile(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An annotation file."""

    split: str = ''  # 'train', 'val', ...
    path: str = ''  # Of the file.
    images: CocoImages  # Those whose types are right.
    annotations: CocoAnnotations  # Those whose types are right.
    categories: CocoCategories  # Those whose types are right.
    # Each record left out of the columns, and what is wrong with the file as a
    # whole.
    errors: tuple[RecordError, ...] = ()
    # Those that are no whole numbers, by the number that stands for one in the
    # columns, from -(1 << 62) down.
    ids: dict[int, str | float] = {}
    # Of panoptic files, for each category that says so, by name, whether its
    # objects are counted.
    things: dict[str, bool] = {}


def read_coco(content: bytes, split: str = '', path: str = '') -> CocoFile:
    """Read an annotation file; nothing is raised for damaged files.

    NaN and Infinity, which are no JSON but written by :mod:`json`, are kept.
    The content is held in memory as long as the result.
    """
    errors: list[RecordError] = []
    ids: dict[int, str | float] = {}
    try:
        if not content.isascii():
            # msgspec does not look into texts that nothing asks for.
            content.decode()
        root = msgspec.json.decode(content, type=_Root)
        tables = {
            key: (records, range(len(records)))
            for key, records in msgspec.structs.asdict(root).items()
        }
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        tables = _one_by_one(_parsed(content, errors), errors, ids)
    return _of_tables(tables, split=split, path=path, errors=errors, ids=ids)


def _of_tables(
    tables: dict[str, tuple[list, Sequence[int]]],
    *,
    errors: list[RecordError],
    **fields: Any,
) -> CocoFile:
    columns = {
        key: make(tables[key][0], np.array(tables[key][1], np.int64))
        for key, make in (
            ('images', _images),
            ('annotations', _annotations),
            ('categories', _categories),
        )
    }
    return CocoFile(**columns, errors=tuple(errors), **fields)


def _parsed(content: bytes, errors: list[RecordError]) -> dict | None:
    """What is in a file; None, with an error, if it is no object."""
    try:
        # As loaders, which open it as text.
        root = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        errors.append(RecordError('', f'malformed JSON: {error}'))
        return None
    if not isinstance(root, dict):
        kind = type(root).__name__
        message = f'the top level must be an object, got {kind}'
        errors.append(RecordError('', message))
        return None
    return root


def _one_by_one(
    root: dict | None,
    errors: list[RecordError],
    ids: dict[int, str | float],
    segments: Sequence[str] | None = None,
) -> dict[str, tuple[list, list[int]]]:
    """The records whose types are right, and their positions.

    ``segments`` are the locations of annotations that have another one.
    """
    tables: dict[str, tuple[list, list[int]]] = {
        key: ([], []) for key in _KINDS
    }
    if root is None:
        return tables
    number_ids(root, ids)
    for key, (records, indices) in tables.items():
        values = root.get(key)
        if key not in root:
            error = RecordError(key, 'the key is missing', ErrorKind.MISSING)
            errors.append(error)
        elif not isinstance(values, list):
            message = f'must be an array, got {type(values).__name__}'
            errors.append(RecordError(key, message))
            values = None
        for index, value in enumerate(values or ()):
            try:
                records.append(_converted(value, _KINDS[key]))
                indices.append(index)
            except (
                OverflowError,
                RecursionError,
                UnicodeEncodeError,
                msgspec.ValidationError,
            ) as error:
                at, message = _what_is_wrong(value, error)
                where = f'{key}[{index}]'
                if segments is not None and key == 'annotations':
                    where = segments[index]
                errors.append(RecordError(f'{where}{at}', message))
    return tables


def _converted(value: Any, kind: type) -> Any:
    """A record of what :mod:`json` has decoded."""
    outline = None
    if kind is RawAnnotation and isinstance(value, dict):
        value = dict(value)
        outline = value.pop('segmentation', None)
    record = msgspec.convert(value, kind)
    if outline is not None:
        record.segmentation = msgspec.Raw(json.dumps(outline).encode())
    return record


def _what_is_wrong(record: Any, error: Exception) -> tuple[str, str]:
    """Location of the first wrong value in a record, and what is wrong."""
    if isinstance(error, UnicodeEncodeError):
        return '', f'a text cannot be written as UTF-8: {error}'
    if not isinstance(error, msgspec.ValidationError):
        return '', f'a number is too large, or a list too deep: {error}'
    text, _, location = str(error).partition(' - at `$')
    location = location.rstrip('`')
    field = location.lstrip('.').partition('[')[0]
    if isinstance(record, dict):
        value = repr(record[field] if field in record else sorted(record))
        more = '...' if len(value) > _MAX_SHOWN else ''
        text = f'{text}: {value[:_MAX_SHOWN]}{more}'
    return location, text


def number_ids(root: dict[str, Any], ids: dict[int, str | float]) -> None:
    """Put whole numbers in the place of other ids, which are as equal.

    Adds to ``ids`` what each stands for; 1.0 becomes 1, which equals it.
    """
    numbers = {value: number for number, value in ids.items()}
    names = 'id', 'image_id', 'category_id'
    for key, name in itertools.product(_KINDS, names):
        records = root.get(key)
        for record in records if isinstance(records, list) else ():
            value = record.get(name) if isinstance(record, dict) else None
            if isinstance(value, float) and value.is_integer():
                record[name] = int(value)
            elif isinstance(value, str | float):
                number = _OTHER_IDS - len(numbers)
                record[name] = numbers.setdefault(value, number)
    ids.update((number, value) for value, number in numbers.items())


def match_ids(file: CocoFile) -> np.ndarray:
    """Ids of annotations in the arrays of pycocotools; NaN where it fails."""

    def number(value: str | float) -> float:
        with suppress(ValueError):
            return float(value)
        return np.nan

    ids = file.annotations.id
    if not file.ids:
        return ids
    return np.array([number(file.ids.get(i, i)) for i in ids.tolist()])


def _column(records: list, name: str, dtype: type) -> np.ndarray:
    return np.fromiter(map(attrgetter(name), records), dtype, len(records))


def _images(records: list, index: np.ndarray) -> CocoImages:
    return CocoImages(
        index=index,
        id=_column(records, 'id', np.int64),
        width=_column(records, 'width', np.float64),
        height=_column(records, 'height', np.float64),
        file_name=tuple(image.file_name for image in records),
        listed=np.array(
            [
                (location, is_neg, value)
                for location, image in zip(index.tolist(), records)
                for is_neg, values in enumerate(
                    (image.not_exhaustive_category_ids, image.neg_category_ids)
                )
                for value in values or ()
            ],
            np.int64,
        ).reshape(-1, 3),
    )


def _categories(records: list, index: np.ndarray) -> CocoCategories:
    return CocoCategories(
        index=index,
        id=_column(records, 'id', np.int64),
        name=tuple(category.name for category in records),
        num_keypoints=np.array(
            [len(category.keypoints or ()) for category in records], np.int64
        ),
    )


def _annotations(records: list, index: np.ndarray) -> CocoAnnotations:
    boxes = [record.bbox for record in records]
    areas = [record.area for record in records]
    crowds = [record.iscrowd for record in records]
    has_bbox, has_area = _present(boxes), _present(areas)
    if not has_bbox.all():
        boxes = [box or _NO_BOX for box in boxes]
    flat = itertools.chain.from_iterable(boxes)
    segmentations = [record.segmentation for record in records]
    kinds, around = _kinds_and_boxes(segmentations)
    return CocoAnnotations(
        index=index,
        id=_column(records, 'id', np.int64),
        image_id=_column(records, 'image_id', np.int64),
        category_id=_column(records, 'category_id', np.int64),
        bbox=np.fromiter(flat, np.float64, 4 * len(boxes)).reshape(-1, 4),
        has_bbox=has_bbox,
        # None becomes NaN.
        area=np.array(areas, np.float64),
        has_area=has_area,
        iscrowd=np.array([crowd or 0 for crowd in crowds], np.int64),
        has_iscrowd=_present(crowds),
        ignore=_column(records, 'ignore', np.bool_),
        segmentation_kind=kinds,
        segmentation_fine=(kinds == NO_SEGMENTATION)
        | (around[:, 0] == around[:, 0]),
        polygon_box=around,
        keypoints=np.array(
            [
                (location, *_extent(record.keypoints))
                for location, record in zip(index.tolist(), records)
                if record.keypoints
            ],
            np.float64,
        ).reshape(-1, 6),
        segmentations=segmentations,
    )


def _extent(keypoints: Any) -> tuple[float, ...]:
    """How many numbers there are, and the box around points with v > 0."""
    try:
        triples = zip(*[iter(keypoints)] * 3)
        seen = [(float(x), float(y)) for x, y, v in triples if v > 0]
    except (OverflowError, TypeError, ValueError):
        return 1, *_NO_BOX
    xs, ys = zip(*seen) if seen else (_NO_BOX, _NO_BOX)
    return len(keypoints), min(xs), min(ys), max(xs), max(ys)


def _present(values: list) -> np.ndarray:
    if None not in values:
        return np.ones(len(values), np.bool_)
    return np.array([value is not None for value in values], np.bool_)


def _kinds_and_boxes(
    segmentations: Sequence[msgspec.Raw],
) -> tuple[np.ndarray, np.ndarray]:
    """Kinds, ``(M,)``, and boxes around polygons that are fine, ``(M, 4)``.

    NaN for what :func:`mask_of` has to look at.
    """
    kinds = np.empty(len(segmentations), np.uint8)
    boxes = np.full((len(segmentations), 4), np.nan)
    # Of many at once, as polygons are small.
    for start in range(0, len(segmentations), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        kinds[some], numbers = zip(
            *map(_kind_and_numbers, segmentations[some])
        )
        sizes = np.array(list(map(len, numbers)))
        fine = sizes > 0
        if fine.any():
            flat = itertools.chain.from_iterable(numbers)
            points = np.fromiter(flat, np.float64, sizes.sum()).reshape(-1, 2)
            starts = (np.cumsum(sizes) - sizes)[fine] // 2
            boxes[some][fine, :2] = np.minimum.reduceat(points, starts)
            boxes[some][fine, 2:] = np.maximum.reduceat(points, starts)
    return kinds, boxes


def _kind_and_numbers(segmentation: msgspec.Raw) -> tuple[int, list[float]]:
    """Kind of a segmentation, and the numbers of polygons that are fine."""
    try:
        shape = _SHAPE.decode(segmentation or b'null')
    except msgspec.DecodeError:
        begins = {b'[': POLYGONS, b'{': RLE}
        return begins.get(bytes(segmentation)[:1], NEITHER), []
    if not shape:
        return NO_SEGMENTATION, []
    if isinstance(shape, dict):
        return RLE, []
    for one in shape:
        if len(one) < MIN_POLYGON or len(one) % 2:
            return POLYGONS, []
    return POLYGONS, _numbers_of(shape)


def _numbers_of(polygons: Sequence) -> list[float]:
    """x, y, x, y, ... of all polygons."""
    if len(polygons) == 1:
        return polygons[0]
    return list(itertools.chain.from_iterable(polygons))


def box_of_polygons(polygons: Sequence) -> tuple[float, ...]:
    """Left, top, right and bottom of polygons, each x, y, x, y, ..."""
    numbers = _numbers_of(polygons)
    across, down = numbers[::2], numbers[1::2]
    return min(across), min(down), max(across), max(down)


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
        return (
            f'the RLE is of {own[0]} x {own[1]} pixels (h x w), the image of '
            f'{size[0]:g} x {size[1]:g}'
        ), []
    if isinstance(counts, str):
        lengths = _decoded(counts)
    else:
        lengths = counts if isinstance(counts, list) else None
    if lengths is None or not all(map(_is_count, lengths)):
        return f'counts of the RLE must be lengths, got {counts!r:.60}', []
    if sum(lengths) != own[0] * own[1]:
        return (
            f'the counts of the RLE are {sum(lengths)} pixels together, its '
            f'size is {own[0]} x {own[1]}'
        ), []
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


def polygon_error(segmentation: Sequence) -> str:
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
        # Python's whole numbers may be too large for a float.
        if not all(abs(number) <= sys.float_info.max for number in polygon):
            return f'polygon {index} has a number that is not finite'
    return ''


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
        error = polygon_error(value)
        return error, () if error else box_of_polygons(value)
    if kind == RLE:
        error, lengths = read_rle(value, size)
        if not error and not any(lengths[1::2]):
            error = 'the RLE has no pixel'
        return error, () if error else _box_of_rle(value)
    return 'neither polygons nor RLE', ()


_BLOCK = 1 << 20


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
    errors: list[RecordError] = []
    ids: dict[int, str | float] = {}
    root = _parsed(content, errors)
    rows: list[dict] = []
    # Of each row, its location and the index of its image's record.
    locations: list[str] = []
    owners: list[int] = []
    segments: dict[int, tuple[SegmentFacts, ...]] = {}
    maps: dict[int, str] = {}
    if root is not None:
        number_ids(root, ids)
    for index, note in enumerate(_records(root, 'annotations')):
        image = note.get('image_id')
        parts = _records(note, 'segments_info')
        if not isinstance(note.get('segments_info'), list):
            message = 'segments_info must be an array'
            errors.append(RecordError(f'annotations[{index}]', message))
        for number, part in enumerate(parts):
            own = {'id': len(rows), 'image_id': image, 'keypoints': None}
            rows.append({**part, **own})
            locations.append(f'annotations[{index}].segments_info[{number}]')
            owners.append(index)
        if isinstance(image, int):
            known = _segments(
                parts, locations[len(rows) - len(parts) :], errors
            )
            segments[image] = (*segments.get(image, ()), *known)
            maps[image] = str(note.get('file_name') or '')
    if root is not None:
        root['annotations'] = rows
    tables = _one_by_one(root, errors, ids, locations)
    notes, indices = tables['annotations']
    tables['annotations'] = notes, [owners[index] for index in indices]
    things = {
        kind['name']: bool(kind['isthing'])
        for kind in _records(root, 'categories')
        if 'isthing' in kind and isinstance(kind.get('name'), str)
    }
    coco = _of_tables(tables, errors=errors, ids=ids, things=things)
    return PanopticFile(coco=coco, segments=segments, maps=maps)


def _records(owner: dict | None, key: str) -> list[dict]:
    """Objects of an array; anything else is an object without keys."""
    values = (owner or {}).get(key)
    if not isinstance(values, list):
        return []
    return [value if isinstance(value, dict) else {} for value in values]


def _segments(
    parts: list[dict], locations: list[str], errors: list[RecordError]
) -> Iterator[SegmentFacts]:
    """Segments of an image whose ids are numbers."""
    for part, location in zip(parts, locations):
        value, area = part.get('id'), part.get('area')
        if type(value) is not int:
            message = (
                f'the id of the segment must be an int, got {value!r:.60}'
            )
            errors.append(RecordError(f'{location}.id', message))
            continue
        known = type(area) in (int, float) and area == area
        yield SegmentFacts(
            id=value, area=float(area) if known else -1.0, location=location
        )
