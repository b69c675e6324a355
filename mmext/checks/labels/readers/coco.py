"""Read annotation files in the JSON format of COCO, as columns.

A file is decoded at once, types checked; of segmentations only the box around
polygons is kept. Only if that fails are its records taken one by one, so that
each bad one is named and the others are kept.
"""

import itertools
import json
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import numpy as np

from ..facts import ErrorKind, RecordError

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
    iscrowd: int | bool | None = None
    ignore: int | bool = 0
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
_KEYS = tuple(_KINDS)
NO_SEGMENTATION, POLYGONS, RLE, NEITHER = range(4)
_SHAPE = msgspec.json.Decoder(list[list[float]] | dict | None)
_NO_BOX = (np.nan,) * 4
# Three points have six numbers.
MIN_POLYGON = 6


class CocoImages(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Columns of ``images``; ``N`` of them could be read.

    Attributes:
        index: ``(N,)``, int64; position in the file.
        id: ``(N,)``, int64.
        width: ``(N,)``, float64; 0 if the file does not say.
        height: ``(N,)``, float64; 0 if the file does not say.
        file_name: ``N`` strings.
        listed: ``(L, 3)``, int64; ``index``, 1 for ``neg_category_ids`` or 0
            for ``not_exhaustive_category_ids``, and an id in it.
    """

    index: np.ndarray
    id: np.ndarray
    width: np.ndarray
    height: np.ndarray
    file_name: tuple[str, ...]
    listed: np.ndarray


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
        has_iscrowd: ``(M,)``, bool.
        ignore: ``(M,)``, bool; marked to be left out of training.
        segmentation_kind: ``(M,)``, uint8: 0 none, null or empty, 1
            polygons (a list), 2 RLE (an object), 3 neither.
        segmentation_fine: ``(M,)``, bool: there is none, or each polygon has
            an even number of finite numbers, 6 or more; False where this
            was not found out.
        polygon_box: ``(M, 4)``, float64: left, top, right and bottom of
            polygons, in pixels, where they are fine; else NaN.
        keypoints: ``(K, 6)``, float64: ``index``, how many numbers (1 if they
            are none), and the box around points with v > 0; NaN without.
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
    has_iscrowd: np.ndarray
    ignore: np.ndarray
    segmentation_kind: np.ndarray
    segmentation_fine: np.ndarray
    polygon_box: np.ndarray
    keypoints: np.ndarray
    segmentations: Sequence[msgspec.Raw]

    def segmentation(self, row: int) -> Any:
        """One segmentation, as :mod:`json` decodes it; None if there is none.

        Raises ValueError if it holds a number of thousands of digits.
        """
        # json agrees with pycocotools on numbers.
        return json.loads(bytes(self.segmentations[row]) or b'null')


class CocoCategories(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Columns of ``categories``; ``K`` of them could be read.

    Attributes:
        index: ``(K,)``, int64; position in the file.
        id: ``(K,)``, int64.
        name: ``K`` strings.
        num_keypoints: ``(K,)``, int64; 0 if the file does not say.
    """

    index: np.ndarray
    id: np.ndarray
    name: tuple[str, ...]
    num_keypoints: np.ndarray


class CocoFile(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An annotation file.

    Attributes:
        split: ``'train'``, ``'val'``, ...
        path: Of the file.
        images: Those whose types are right.
        annotations: Those whose types are right.
        categories: Those whose types are right.
        errors: Each record left out of the columns, and what is wrong with
            the file as a whole.
        ids: Those that are no whole numbers, by the number that stands for
            one in the columns, from -(1 << 62) down.
        things: Of panoptic files, for each category that says so, by name,
            whether its objects are counted.
    """

    split: str = ''
    path: str = ''
    images: CocoImages
    annotations: CocoAnnotations
    categories: CocoCategories
    errors: tuple[RecordError, ...] = ()
    ids: dict[int, str | float] = {}
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
        tables = _one_by_one(content, errors, ids)
    columns = {
        key: _TABLES[key](records, np.array(indices, np.int64))
        for key, (records, indices) in tables.items()
    }
    return CocoFile(
        split=split, path=path, **columns, errors=tuple(errors), ids=ids
    )


def _one_by_one(
    content: bytes, errors: list[RecordError], ids: dict[int, str | float]
) -> dict[str, tuple[list, list[int]]]:
    """The records whose types are right, and their positions."""
    tables: dict[str, tuple[list, list[int]]] = {
        key: ([], []) for key in _KEYS
    }
    try:
        # As loaders, which open it as text.
        root = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        errors.append(RecordError('', f'malformed JSON: {error}'))
        return tables
    if not isinstance(root, dict):
        kind = type(root).__name__
        message = f'the top level must be an object, got {kind}'
        errors.append(RecordError('', message))
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
                msgspec.ValidationError,
            ) as error:
                place, message = _what_is_wrong(value, error)
                errors.append(RecordError(f'{key}[{index}]{place}', message))
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
    """Place of the first wrong value in a record, and what is wrong."""
    if not isinstance(error, msgspec.ValidationError):
        return '', f'a number is too large, or a list too deep: {error}'
    text, _, place = str(error).partition(' - at `$')
    place = place.rstrip('`')
    field = place.lstrip('.').partition('[')[0]
    if isinstance(record, dict):
        value = repr(record[field] if field in record else sorted(record))
        more = '...' if len(value) > _MAX_SHOWN else ''
        text = f'{text}: {value[:_MAX_SHOWN]}{more}'
    return place, text


def number_ids(root: dict[str, Any], ids: dict[int, str | float]) -> None:
    """Put whole numbers in the place of other ids, which are as equal.

    Adds to ``ids`` what each stands for; 1.0 becomes 1, which equals it.
    """
    numbers = {value: number for number, value in ids.items()}
    names = 'id', 'image_id', 'category_id'
    for key, name in itertools.product(_KEYS, names):
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
                (place, is_neg, value)
                for place, image in zip(index.tolist(), records)
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
    shapes = list(map(_kind_and_box, segmentations))
    kinds = np.array([kind for kind, _ in shapes], np.uint8)
    around = np.array([box for _, box in shapes], np.float64).reshape(-1, 4)
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
                (place, *_extent(record.keypoints))
                for place, record in zip(index.tolist(), records)
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


def _kind_and_box(
    segmentation: msgspec.Raw,
) -> tuple[int, tuple[float, ...]]:
    """Kind of a segmentation, and the box around polygons that are fine.

    NaN for what :mod:`.coco_masks` has to look at.
    """
    text = bytes(segmentation)
    try:
        shape = _SHAPE.decode(text or b'null')
    except msgspec.DecodeError:
        begins = {b'[': POLYGONS, b'{': RLE}
        return begins.get(text[:1], NEITHER), _NO_BOX
    if not shape:
        return NO_SEGMENTATION, _NO_BOX
    if isinstance(shape, dict):
        return RLE, _NO_BOX
    if any(len(one) < MIN_POLYGON or len(one) % 2 for one in shape):
        return POLYGONS, _NO_BOX
    return POLYGONS, box_of_polygons(shape)


def box_of_polygons(polygons: Sequence) -> tuple[float, ...]:
    """Left, top, right and bottom of polygons, each x, y, x, y, ..."""
    numbers = polygons[0]
    if len(polygons) > 1:
        numbers = list(itertools.chain.from_iterable(polygons))
    across, down = numbers[::2], numbers[1::2]
    return tuple(map(float, (min(across), min(down), max(across), max(down))))


_TABLES = {
    'images': _images,
    'annotations': _annotations,
    'categories': _categories,
}
