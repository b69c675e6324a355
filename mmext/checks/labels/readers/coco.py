"""Read annotation files in the JSON format of COCO, as columns.

A file is decoded once, a few MB at a time, types checked; of segmentations
only the box around polygons is kept. Only if that fails are its records taken
one by one, so that each bad one is named and the others are kept.
"""

import io
import itertools
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Annotated, Any, BinaryIO
from urllib.parse import urlsplit

import msgspec
import numpy as np

from ..facts import RecordError
from .coco_stream import UnusualFile, decode_records, record_batches

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


class _DecodedAnnotation(RawAnnotation, gc=False):
    """The same, from a file that had to be decoded whole."""

    segmentation: Any = None


class RawCategory(msgspec.Struct, gc=False):
    """One of ``categories``."""

    id: Id
    name: str
    keypoints: list | dict | None = None


_RAW = {
    'images': RawImage,
    'annotations': RawAnnotation,
    'categories': RawCategory,
}
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
_NO_BOX = (np.nan,) * 4
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
        segmentations: ``M``, not decoded; see :meth:`segmentation`. Those
            of a file are read again.
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
    segmentations: Sequence[Any]

    def segmentation(self, row: int) -> Any:
        """One segmentation, as :mod:`json` decodes it; None if there is none.

        Raises ValueError if it holds a number of thousands of digits, or if
        the file has changed.
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
        num_keypoints: ``(K,)``, int64; 0 if the file does not say.
    """

    index: np.ndarray
    id: np.ndarray
    name: tuple[str, ...]
    num_keypoints: np.ndarray


class CocoFile(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What an annotation file says.

    Attributes:
        images: Those whose types are right.
        annotations: Those whose types are right.
        categories: Those whose types are right.
        errors: Each record left out of the columns, and what is wrong with
            the file as a whole.
        ids: Those that are no whole numbers, by the number that stands for
            one in the columns, from -(1 << 62) down.
    """

    images: CocoImages
    annotations: CocoAnnotations
    categories: CocoCategories
    errors: tuple[RecordError, ...] = ()
    ids: dict[int, str | float] = {}


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


def read_coco(content: bytes | BinaryIO) -> CocoFile:
    """Read an annotation file; nothing is raised for damaged files.

    NaN and Infinity, which are no JSON but written by :mod:`json`, are kept.
    90 MB a second; files with an error five times slower.

    ``content``: Text, or a file that is open for reading, which the columns
    then refer to for segmentations. It is not held in memory, unless it has
    an error or is written in an unusual way.
    """
    file = io.BytesIO(content) if isinstance(content, bytes) else content
    errors: list[RecordError] = []
    ids: dict[int, str | float] = {}
    try:
        tables = _in_batches(file)
    except (
        UnusualFile,
        msgspec.DecodeError,
        RecursionError,
        UnicodeDecodeError,
    ):
        file.seek(0)
        records, indices = _one_by_one(file.read(), errors, ids)
        tables = {
            key: _TABLES[key](records[key], np.array(indices[key], np.int64))
            for key in _KEYS
        }
    return CocoFile(**tables, errors=tuple(errors), ids=ids)


def _in_batches(file: BinaryIO) -> dict[str, Any]:
    """The tables of a file all of whose records are right."""
    tables = {key: _Growing(key) for key in _KEYS}
    places: list[tuple[int, int]] = []
    ends: list[int] = []
    for key, place, records in record_batches(file, _RAW):
        tables[key].add(records)
        if key == 'annotations':
            places.append(place)
            ends.append(tables[key].size)
    stored = _Stored(file, places, np.array(ends, np.int64))
    return {
        'images': tables['images'].finish(),
        'annotations': tables['annotations'].finish(segmentations=stored),
        'categories': tables['categories'].finish(),
    }


class _Growing:
    """A table that gets its rows in batches, in the memory of one."""

    def __init__(self, key: str) -> None:
        self._make, self.size = _TABLES[key], 0
        self._empty = self._make([], np.zeros(0, np.int64))
        self._arrays: dict[str, bytearray] = {}
        self._texts: list[str] = []

    def add(self, records: list) -> None:
        first, self.size = self.size, self.size + len(records)
        part = self._make(records, np.arange(first, self.size))
        for name, values in msgspec.structs.asdict(part).items():
            if isinstance(values, np.ndarray):
                self._arrays.setdefault(name, bytearray()).extend(
                    values.tobytes()
                )
            elif isinstance(values, tuple):
                self._texts += values

    def finish(self, **others: Any) -> Any:
        """The table; ``others`` are columns that were not collected."""
        columns: dict[str, Any] = {}
        for name, value in msgspec.structs.asdict(self._empty).items():
            columns[name] = tuple(self._texts)
            if isinstance(value, np.ndarray):
                data = self._arrays.pop(name, bytearray())
                shape = -1, *value.shape[1:]
                columns[name] = np.frombuffer(data, value.dtype).reshape(shape)
        return type(self._empty)(**columns | others)


class _Stored(Sequence):
    """Segmentations that are in a file.

    ``places``: Of each batch of annotations, begin and length; ``ends``: The
    row behind its last.
    """

    def __init__(
        self, file: BinaryIO, places: list[tuple[int, int]], ends: np.ndarray
    ) -> None:
        self._file, self._places, self._ends = file, places, ends
        self._loaded, self._records = -1, []

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, row: int) -> msgspec.Raw:
        batch = int(np.searchsorted(self._ends, row, 'right'))
        if batch != self._loaded:
            self._records = self._load(batch)
            self._loaded = batch
        # Counted from the last record of the batch.
        return self._records[row - int(self._ends[batch])].segmentation

    def _load(self, batch: int) -> list[RawAnnotation]:
        begin, length = self._places[batch]
        self._file.seek(begin)
        try:
            return decode_records(self._file.read(length), RawAnnotation)
        except msgspec.DecodeError as error:
            raise ValueError(
                f'the file has changed since it was read: {error}'
            ) from error


def _one_by_one(
    content: bytes,
    errors: list[RecordError],
    ids: dict[int, str | float],
) -> tuple[dict[str, list], dict[str, list[int]]]:
    """The records whose types are right, and their positions."""
    records: dict[str, list] = {key: [] for key in _KEYS}
    indices: dict[str, list[int]] = {key: [] for key in _KEYS}
    try:
        # As loaders, which open it as text.
        root = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        errors.append(RecordError('', f'malformed JSON: {error}'))
        return records, indices
    if not isinstance(root, dict):
        kind = type(root).__name__
        message = f'the top level must be an object, got {kind}'
        errors.append(RecordError('', message))
        return records, indices
    number_ids(root, ids)
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
                records[key].append(record)
                indices[key].append(index)
    return records, indices


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
    codes, around = _codes_and_boxes(segmentations)
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


def _codes_and_boxes(segmentations: list) -> tuple[np.ndarray, np.ndarray]:
    """Kind of each, with :data:`_FINE` if there is no need to decode it.

    And the boxes around polygons. Without digits, most texts are the same as
    others: what is left of them tells how many numbers each polygon has, and
    each such rest is looked at once.
    """
    around = np.full((len(segmentations), 4), np.nan)
    if segmentations and type(segmentations[0]) is not msgspec.Raw:
        codes = [_kind(value) for value in segmentations]
        return np.array(codes, np.uint8), around
    texts = list(map(bytes, segmentations))
    rests = [
        text.translate(None, _DIGITS)
        if len(text) < _LONG
        else _rest_of_long(text)
        for text in texts
    ]
    code_of = {rest: _code_of_rest(rest) for rest in set(rests)}
    codes = np.array([code_of[rest] for rest in rests], np.uint8)
    if b'' in code_of:
        # There is none, or it is a number.
        for row, rest in enumerate(rests):
            if not rest and texts[row]:
                codes[row] = NEITHER
    rows = np.flatnonzero(codes == POLYGONS | _FINE)
    commas = np.array([rests[row].count(b',') for row in rows], np.int64)
    try:
        around[rows] = _boxes_of([texts[row] for row in rows], commas + 1)
    except msgspec.DecodeError:
        # A number that is too large for a float, which json calls infinite.
        codes[rows] = POLYGONS
    return codes, around


def _boxes_of(texts: list[bytes], counts: np.ndarray) -> np.ndarray:
    """``(R, 4)``, boxes around polygons; ``counts`` ``(R,)`` are numbers."""
    if not texts:
        return np.zeros((0, 4))
    text = b'[%s]' % b','.join(texts).translate(None, b'[]')
    numbers = msgspec.json.decode(text, type=list[float])
    points = np.array(numbers, np.float64).reshape(-1, 2)
    begins = (np.cumsum(counts) - counts) // 2
    return np.concatenate(
        [
            np.minimum.reduceat(points, begins),
            np.maximum.reduceat(points, begins),
        ],
        axis=1,
    )


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


_TABLES = {
    'images': _images,
    'annotations': _annotations,
    'categories': _categories,
}
