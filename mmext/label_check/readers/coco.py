"""Read annotation files in the JSON format of COCO, as columns.

A file is decoded once, types checked, segmentations left as they are. Only if
that fails are its records taken one by one, so that each bad one is named and
the others are kept.
"""

import itertools
import json
import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import numpy as np

from ..facts import RecordError

__all__ = [
    'CocoAnnotations',
    'CocoCategories',
    'CocoFacts',
    'CocoFile',
    'CocoImages',
    'CocoRecords',
    'RawAnnotation',
    'RawCategory',
    'RawImage',
    'convert_record',
    'read_coco',
]

_MAX_SHOWN = 60

Id = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class RawImage(msgspec.Struct, gc=False):
    """One of ``images``; its name may be the path of its URL."""

    id: Id
    file_name: str = ''
    width: float = 0
    height: float = 0
    coco_url: str = ''

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
    segmentation: msgspec.Raw = msgspec.Raw()


class _DecodedAnnotation(RawAnnotation, gc=False):
    """The same, from a file that had to be decoded whole."""

    segmentation: Any = None


class RawCategory(msgspec.Struct, gc=False):
    """One of ``categories``."""

    id: Id
    name: str


class CocoRecords(msgspec.Struct):
    """The whole file."""

    images: list[RawImage]
    annotations: list[RawAnnotation]
    categories: list[RawCategory]


_KINDS = {
    'images': RawImage,
    'annotations': _DecodedAnnotation,
    'categories': RawCategory,
}


def convert_record(
    key: str, record: Any
) -> tuple[msgspec.Struct | None, str, str]:
    """Check the types of one record, as :mod:`json` decodes it.

    Gives the record, None if its types are wrong; the place of the first wrong
    value in the record, such as ``'.bbox[2]'``; what is wrong.
    """
    try:
        return msgspec.convert(record, _KINDS[key]), '', ''
    except OverflowError as error:
        return None, '', f'a number is too large: {error}'
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(' - at `$')
        place = place.rstrip('`')
        field = place.lstrip('.').partition('[')[0]
        if isinstance(record, dict):
            value = repr(record[field] if field in record else sorted(record))
            more = '...' if len(value) > _MAX_SHOWN else ''
            text = f'{text}: {value[:_MAX_SHOWN]}{more}'
        return None, place, text


_KEYS = ('images', 'annotations', 'categories')
NO_SEGMENTATION, POLYGONS, RLE, NEITHER = range(4)
_FINE = 4
_DIGITS = b'0123456789.+- \t\r\n'
_POLYGONS = re.compile(rb'\[\[,*\](,\[,*\])*\]')
# Texts of this length may hold a number that json refuses.
_LONG = 4000
_MANY_DIGITS = re.compile(rb'\d{%d}' % _LONG)
# Between the six numbers of three points.
_MIN_COMMAS = 5


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
        has_iscrowd: ``(M,)``, bool.
        ignore: ``(M,)``, bool; marked to be left out of training.
        segmentation_kind: ``(M,)``, uint8: 0 none, null or empty, 1
            polygons (a list), 2 RLE (an object), 3 neither.
        segmentation_fine: ``(M,)``, bool: there is none, or each polygon has
            an even number of finite numbers, 6 or more; False where this
            was not found out.
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
    segmentations: Sequence[Any]

    def segmentation(self, row: int) -> Any:
        """One segmentation, as :mod:`json` decodes it; None if there is none.

        Raises ValueError if it holds a number of thousands of digits.
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
    errors: tuple[RecordError, ...] = ()


class CocoFacts(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An annotation file, for rules.

    Attributes:
        split: ``'train'``, ``'val'``, ...
        path: Of the file.
        file: What it says.
        things: Of panoptic files, for each category that says so, by name,
            whether its objects are counted.
    """

    split: str
    path: str
    file: CocoFile
    things: dict[str, bool] = {}


def read_coco(content: bytes) -> CocoFile:
    """Read an annotation file; nothing is raised for damaged files.

    NaN and Infinity, which are no JSON but written by :mod:`json`, are kept.
    200 MB a second; files with an error ten times slower. The columns refer to
    ``content`` for segmentations, and keep it in memory.
    """
    indices: dict[str, Sequence[int]] = {}
    errors: list[RecordError] = []
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
            name=tuple(category.name for category in records.categories),
        ),
        errors=tuple(errors),
    )


def _one_by_one(
    content: bytes, errors: list[RecordError]
) -> tuple[CocoRecords, dict[str, list[int]]]:
    """The records whose types are right, and their positions."""
    records = CocoRecords([], [], [])
    indices: dict[str, list[int]] = {key: [] for key in _KEYS}
    try:
        root = json.loads(content)
    except (ValueError, RecursionError) as error:
        errors.append(RecordError('', f'malformed JSON: {error}'))
        return records, indices
    if not isinstance(root, dict):
        kind = type(root).__name__
        message = f'the top level must be an object, got {kind}'
        errors.append(RecordError('', message))
        return records, indices
    for key in _KEYS:
        values = root.get(key)
        if not isinstance(values, list):
            message = f'must be an array, got {type(values).__name__}'
            if key not in root:
                message = 'the key is missing'
            errors.append(RecordError(key, message))
            continue
        for index, value in enumerate(values):
            record, place, message = convert_record(key, value)
            if record is None:
                errors.append(RecordError(f'{key}[{index}]{place}', message))
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
        file_name=tuple(image.file_name for image in records),
    )


def _annotations(records: list, index: np.ndarray) -> CocoAnnotations:
    boxes = [record.bbox for record in records]
    areas = [record.area for record in records]
    crowds = [record.iscrowd for record in records]
    has_bbox, has_area = _present(boxes), _present(areas)
    if not has_bbox.all():
        nothing = (np.nan,) * 4
        boxes = [box or nothing for box in boxes]
    flat = itertools.chain.from_iterable(boxes)
    segmentations = [record.segmentation for record in records]
    codes = _codes(segmentations)
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
        segmentation_kind=codes % _FINE,
        segmentation_fine=codes >= _FINE,
        segmentations=segmentations,
    )


def _present(values: list) -> np.ndarray:
    if None not in values:
        return np.ones(len(values), np.bool_)
    return np.array([value is not None for value in values], np.bool_)


def _codes(segmentations: list) -> np.ndarray:
    """Kind of each, with :data:`_FINE` if there is no need to decode it.

    Without digits, most texts are the same as others: what is left of them
    tells how many numbers each polygon has, and each such rest is looked at
    once.
    """
    if segmentations and type(segmentations[0]) is not msgspec.Raw:
        return np.array([_kind(value) for value in segmentations], np.uint8)
    rests = [
        text.translate(None, _DIGITS)
        if len(text := bytes(raw)) < _LONG
        else _rest_of_long(text)
        for raw in segmentations
    ]
    code_of = {rest: _code_of_rest(rest) for rest in set(rests)}
    codes = np.array([code_of[rest] for rest in rests], np.uint8)
    if b'' in code_of:
        # There is none, or it is a number.
        for row, rest in enumerate(rests):
            if not rest and bytes(segmentations[row]):
                codes[row] = NEITHER
    return codes


def _rest_of_long(text: bytes) -> bytes:
    """With a number of thousands of digits, which json refuses, the text."""
    rest = text.translate(None, _DIGITS)
    return text if _MANY_DIGITS.search(text) else rest


def _code_of_rest(rest: bytes) -> int:
    """From the text of a segmentation, its digits and spaces taken out."""
    if rest in (b'', b'null', b'[]', b'{}'):
        return NO_SEGMENTATION | _FINE
    if rest.startswith(b'['):
        fine = _POLYGONS.fullmatch(rest) and all(
            commas >= _MIN_COMMAS and commas % 2
            for commas in map(len, rest[2:-2].split(b'],['))
        )
        return POLYGONS | _FINE if fine else POLYGONS
    return RLE if rest.startswith(b'{') else NEITHER


def _kind(segmentation: Any) -> int:
    if segmentation is None or segmentation == [] or segmentation == {}:
        return NO_SEGMENTATION
    if isinstance(segmentation, list):
        return POLYGONS
    return RLE if isinstance(segmentation, dict) else NEITHER
