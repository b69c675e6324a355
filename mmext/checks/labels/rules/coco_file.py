"""Rules for an annotation file in the format of COCO as a whole.

Boxes are looked at by the rules of det_boxes.py; segments of panoptic files
beside those of the PNG.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ....datasets.box_limits import BORDER_TOLERANCE
from ...findings import Location, Severity, new_finding
from ..expectations import Expectations
from ..facts import ErrorKind, SampleFacts, SegmentFacts
from ..readers.coco import CocoFile, match_ids
from ..sources.coco import image_rows, lacks_mask, rows_of
from .classes import written_like
from .registry import COCO, PAN, Findings

_MAX_EXAMPLES = 20


def _marked(
    facts: CocoFile, kind: str, message: str, rows: np.ndarray, **fields: Any
) -> Findings:
    """One finding for some rows of a table, or for those of a mask."""
    index = getattr(facts, kind).index[rows]
    keys = [f'{kind}[{number}]' for number in index[:_MAX_EXAMPLES]]
    if keys:
        yield new_finding(
            message,
            file=facts.path,
            key=keys[0],
            related=tuple(Location(file=facts.path, key=k) for k in keys[1:]),
            count=len(index),
            **fields,
        )


@COCO.rule(
    'COCO001',
    symptoms=('Unexpected UTF-8 BOM (decode using utf-8-sig)',),
    title='record or file that cannot be read',
    remedy='correct the record, or save the file as UTF-8 without a '
    'byte-order mark; loaders fail at it, or at the first image that needs it',
    fix='remove the byte-order mark',
)
def _unreadable(facts: CocoFile, expected: Expectations) -> Findings:
    # Lists of images alone have no such key.
    kept_back = expected.task == 'unlabelled' or (
        expected.split.partition('[')[0] == 'test'
    )
    for error in facts.errors:
        absent = (
            error.location == 'annotations' and error.kind is ErrorKind.MISSING
        )
        if not (absent and kept_back):
            yield new_finding(
                error.message, file=facts.path, key=error.location
            )


def _used_twice(kind: str, **columns: str) -> Callable:
    """A rule for records whose id or name another record has."""

    def check(facts: CocoFile, expected: Expectations) -> Findings:
        records, ids = getattr(facts, kind), facts.ids
        for column, what in columns.items():
            values = getattr(records, column)
            rows: dict[Any, int] = {}
            for row, value in enumerate(np.asarray(values).tolist()):
                first = rows.setdefault(value, row)
                if first != row:
                    yield new_finding(
                        f'{what} is taken by another record',
                        file=facts.path,
                        key=f'{kind}[{records.index[row]}]',
                        value=f'{ids.get(value, value)}, '
                        f'first in {kind}[{records.index[first]}]',
                    )

    return check


COCO.rule(
    'COCO002',
    symptoms=('are not unique!',),
    title='annotation id used twice',
    remedy='number the annotations anew; MMDetection refuses such a file, '
    'pycocotools keeps the last one',
    unit='annotation',
    fix='give the later annotation a new id',
)(_used_twice('annotations', id='the annotation id'))


COCO.rule(
    'COCO003',
    title='image id used twice',
    remedy='number the images anew, and their annotations with them; loaders '
    'keep one image and give it the objects of both',
    unit='image',
)(_used_twice('images', id='the image id'))


COCO.rule(
    'COCO004',
    title='file name used twice',
    severity=Severity.WARNING,
    remedy='merge the two images, and the annotations of both; each is '
    'trained with the objects of the other as background',
    unit='image',
)(_used_twice('images', file_name='the file name'))


def _dangling(column: str, kind: str, name: str) -> Callable:
    """A rule for annotations of what is not there; a finding for each id."""
    message = f'no {name} has the {column} of the annotation'

    def check(facts: CocoFile, expected: Expectations) -> Findings:
        ids = getattr(facts.annotations, column)
        known = getattr(facts, kind).id
        rows = np.flatnonzero(~np.isin(ids, known))
        rows = rows[np.argsort(ids[rows], kind='stable')]
        starts = np.flatnonzero(np.diff(ids[rows])) + 1
        for own in np.split(rows, starts) if len(rows) else ():
            value = int(ids[own[0]])
            shown = repr(facts.ids.get(value, value))
            yield from _marked(facts, 'annotations', message, own, value=shown)

    return check


COCO.rule(
    'COCO005',
    title='annotation of an image that is not there',
    remedy='add the image, or remove the annotation; loaders drop it without '
    'saying so',
    unit='annotation',
)(_dangling('image_id', 'images', 'image'))


COCO.rule(
    'COCO006',
    title='annotation of a category that is not there',
    remedy='add the category, or correct category_id; loaders drop such an '
    'annotation without saying so',
    unit='annotation',
)(_dangling('category_id', 'categories', 'category'))


@COCO.rule(
    'COCO007',
    symptoms=('= -1.000', '= 0.000', 'list index out of range'),
    title='class of the config that the file does not have',
    remedy='metainfo.classes must hold the names of the file, letter by '
    'letter; a class that is not found gets no objects',
)
def _missing_classes(facts: CocoFile, expected: Expectations) -> Findings:
    names = facts.categories.name
    if not names and facts.errors:
        return  # COCO001 says so.
    for name in expected.classes:
        if name not in names:
            like = written_like(name, names)
            yield new_finding(
                f'class {name!r} is no category of the file, which has '
                f'{sorted(set(names))}',
                remedy=f'write {like!r} in metainfo.classes, as the file '
                'does; names are compared letter by letter, and a class that '
                'is not found gets no objects'
                if like
                else '',
                file=facts.path,
                value=name,
            )


@COCO.rule(
    'COCO008',
    title='categories in another order than the classes',
    remedy='list metainfo.classes in the order of the categories of the '
    'file, which is what the labels are numbered by',
)
def _category_order(facts: CocoFile, expected: Expectations) -> Findings:
    names = [
        name for name in facts.categories.name if name in expected.classes
    ]
    if set(names) != set(expected.classes) or len(names) != len(set(names)):
        return  # COCO007 and COCO010 say so.
    wrong = [
        (index, wanted, given)
        for index, (wanted, given) in enumerate(zip(expected.classes, names))
        if wanted != given
    ]
    if wrong:
        index, wanted, given = wrong[0]
        yield new_finding(
            f'label {index} is {wanted!r} to the config, but its objects are '
            f'those of {given!r}; {len(wrong)} classes are exchanged',
            file=facts.path,
            key='categories',
            value=f'{wanted} and {given}',
        )


@COCO.rule(
    'COCO009',
    title='annotation that loaders drop without saying so',
    severity=Severity.WARNING,
    remedy='remove it from the file, or correct what they drop it for: '
    '"ignore", or an area of 0 or less',
    unit='annotation',
)
def _dropped(facts: CocoFile, expected: Expectations) -> Findings:
    notes = facts.annotations
    reasons = {
        'the annotation has "ignore"': notes.ignore,
        'the area of the annotation is 0 or negative': (
            notes.has_area & (notes.area <= 0) & ~notes.ignore
        ),
    }
    for message, mask in reasons.items():
        yield from _marked(facts, 'annotations', message, mask)


COCO.rule(
    'COCO010',
    title='category id or name used twice',
    remedy='merge the two categories, and the annotations of both',
)(_used_twice('categories', id='the category id', name='the name'))


@COCO.rule(
    'COCO011',
    title='annotation without a box or an area',
    remedy='write bbox and area; loaders of MMDetection fail with a KeyError',
    unit='annotation',
    fix='write the area of the box, if the object has no mask',
)
def _incomplete(facts: CocoFile, expected: Expectations) -> Findings:
    notes = facts.annotations
    for key, there in (('bbox', notes.has_bbox), ('area', notes.has_area)):
        message, mask = f'the annotation has no {key}', ~there & ~notes.ignore
        yield from _marked(facts, 'annotations', message, mask, value=key)


@COCO.rule(
    'COCO012',
    title='category that the config leaves out',
    severity=Severity.INFO,
    remedy='nothing, if the training is to be on fewer classes; else add the '
    'name to metainfo.classes, letter by letter: loaders drop its objects',
    unit='annotation',
    per_value=True,
)
def _left_out(facts: CocoFile, expected: Expectations) -> Findings:
    """Categories with annotations whose name is no class.

    An error where a class of the file has the same name but for case or
    blanks: the objects are trained as background.
    """
    kinds = facts.categories
    number = Counter(facts.annotations.category_id.tolist())
    rows = list(zip(kinds.index.tolist(), kinds.id.tolist(), kinds.name))
    known = {row[1] for row in rows if row[2] in expected.classes}
    present = sorted(set(kinds.name).intersection(expected.classes))
    for index, category_id, name in rows if expected.classes else ():
        if (
            name not in expected.classes
            and category_id not in known
            and number[category_id]
        ):
            like = written_like(name, present)
            yield new_finding(
                f'category {name!r} is not among the '
                f'{len(expected.classes)} classes of the data set'
                + (f', but {like!r} is' if like else ''),
                severity=Severity.ERROR if like else None,
                remedy=f'merge the category with {like!r}: loaders compare '
                'names letter by letter, and drop its objects without saying '
                'so'
                if like
                else '',
                file=facts.path,
                key=f'categories[{index}]',
                value=name,
                count=number[category_id],
            )


@COCO.rule(
    'COCO013',
    title='image without width or height',
    remedy='write both in pixels; without the keys, loaders of MMDetection '
    'fail with a KeyError, and with 0 they drop all boxes of the image',
    unit='image',
    fix='write the size of the image file',
)
def _no_size(facts: CocoFile, expected: Expectations) -> Findings:
    """Images whose noted size is missing, 0, negative or no number."""
    images = facts.images
    good = np.isfinite(images.width) & np.isfinite(images.height)
    good &= (images.width > 0) & (images.height > 0)
    message = 'the image has no width or height, or one that is not above 0'
    yield from _marked(facts, 'images', message, ~good)


@COCO.rule(
    'COCO014',
    title='annotation without iscrowd',
    remedy='write iscrowd=0 into each annotation that is not a crowd, or '
    'evaluate with mmext.CocoMetric, which takes a missing one for 0; '
    "trainings do not need it, but COCO's evaluation does",
    unit='annotation',
    fix='write iscrowd=0',
)
def _no_iscrowd(facts: CocoFile, expected: Expectations) -> Findings:
    metric = expected.coco_metric
    if metric == '' or expected.fills_iscrowd:
        return
    who = f'{metric} fails' if metric else "COCO's evaluation would fail"
    yield from _marked(
        facts,
        'annotations',
        f'the annotation has no iscrowd, and {who} with KeyError',
        ~facts.annotations.has_iscrowd,
        severity=Severity.ERROR if metric else Severity.WARNING,
    )


@COCO.rule(
    'COCO015',
    title='annotation with the id 0, or with a word for an id',
    severity=Severity.WARNING,
    remedy='number annotations from 1: pycocotools takes 0 for "no match", '
    'so that the object counts as missed however it is predicted, and fails '
    'at a word',
    unit='annotation',
    fix='give the annotation a new id',
)
def _id_zero(facts: CocoFile, expected: Expectations) -> Findings:
    metric = expected.coco_metric
    if not metric:
        return
    ids = match_ids(facts)
    message = f'the annotation has the id 0, and {metric} counts it as missed'
    yield from _marked(facts, 'annotations', message, ids == 0)
    yield from _marked(
        facts,
        'annotations',
        f'the id of the annotation is a word, and {metric} raises ValueError',
        np.isnan(ids),
        severity=Severity.ERROR,
    )


@COCO.rule(
    'COCO016',
    title='annotation without the mask that the pipeline loads',
    remedy='write its outline as polygons or RLE, or load no masks '
    '(with_mask=False) for a model without a mask head',
    unit='annotation',
)
def _no_mask(facts: CocoFile, expected: Expectations) -> Findings:
    if not expected.loads_masks:
        return
    message = (
        'the annotation has no segmentation, and LoadAnnotations with '
        "with_mask=True fails with KeyError: 'mask'"
    )
    remedy = ''
    if not np.any(facts.annotations.segmentation_kind):
        message += '; no annotation of the file has one'
        remedy = (
            'export the annotations with outlines; or train on boxes alone, '
            'with with_mask=False and a model without a mask head'
        )
    mask = lacks_mask(facts, expected)
    yield from _marked(facts, 'annotations', message, mask, remedy=remedy)


@COCO.rule(
    'COCO017',
    title='key points that do not fit their category or their image',
    severity=Severity.WARNING,
    remedy='write x, y and v for each key point that the category names, in '
    'pixels, and v=0 for one that is not labelled; MMDetection reads none, '
    'pycocotools and MMPose do',
    unit='annotation',
)
def _keypoints(facts: CocoFile, expected: Expectations) -> Findings:
    notes = facts.annotations
    locations, numbers, x1, y1, x2, y2 = notes.keypoints.T
    rows = np.searchsorted(notes.index, locations)
    # 0, which is appended, where the category or the image is not there.
    kinds = rows_of(facts.categories.id, notes.category_id[rows])
    wanted = 3 * np.append(facts.categories.num_keypoints, 0)[kinds]
    wrong = np.where(wanted > 0, numbers != wanted, numbers % 3 != 0)
    message = 'keypoints must be 3 numbers for each key point of the category'
    yield from _marked(facts, 'annotations', message, rows[wrong])
    outside = (x1 < -BORDER_TOLERANCE) | (y1 < -BORDER_TOLERANCE)
    images = rows_of(facts.images.id, notes.image_id[rows])
    for end, side in ((x2, facts.images.width), (y2, facts.images.height)):
        limit = np.append(side, 0)[images]
        outside |= (limit > 0) & (end > limit + BORDER_TOLERANCE)
    message = 'a key point with v > 0 lies outside of the image'
    yield from _marked(facts, 'annotations', message, rows[outside])


@COCO.rule(
    'COCO018',
    title='lists of categories of an image that contradict the file',
    severity=Severity.WARNING,
    remedy="correct the list: by it LVIS's evaluation decides which "
    'predictions without an object are wrong',
    unit='image',
)
def _category_lists(facts: CocoFile, expected: Expectations) -> Findings:
    images = facts.images
    locations, is_neg, ids = images.listed.T
    if not len(ids):
        return
    rows = np.searchsorted(images.index, locations)
    unknown = ~np.isin(ids, facts.categories.id)
    # Pairs of an image and a category.
    there = image_rows(facts) + 1j * facts.annotations.category_id
    both = np.isin(rows + 1j * ids, there) & (is_neg == 1) & ~unknown
    for message, wrong in (
        ('a list of the image has a category that does not exist', unknown),
        ('neg_category_ids has a category that has objects there', both),
    ):
        shown = ', '.join(map(str, np.unique(ids[wrong])[:_MAX_EXAMPLES]))
        where = np.unique(rows[wrong])
        yield from _marked(facts, 'images', message, where, value=shown)


_VOID = 0
_MAX_SHOWN = 5
# Others hold one number, or indices, for each pixel.
_COLOURS = ('RGB', 'RGBA')


def _ids(facts: SampleFacts) -> dict[int, int]:
    """Pixels of each id, red + 256 green + 65536 blue; none if unknown."""
    mask = facts.mask
    if mask is None or mask.error or mask.mode not in _COLOURS:
        return {}
    if mask.truncated:
        return {}
    return {
        (colour >> 16) | (colour & 0xFF00) | (colour & 0xFF) << 16: count
        for colour, count in mask.values
    }


def _about(facts: SampleFacts, segment: SegmentFacts) -> dict:
    return {
        'file': facts.sample.annotation,
        'key': segment.location,
        'image': facts.sample.mask,
        'value': str(segment.id),
    }


@PAN.rule(
    'PAN001',
    title='segment that the PNG does not have',
    remedy='remove the segment from segments_info, or paint it; the loader '
    'makes an empty mask of it, and the metric fails',
    unit='segment',
)
def _not_painted(facts: SampleFacts, expected: Expectations) -> Findings:
    ids = _ids(facts)
    for segment in facts.sample.segments if ids else ():
        if segment.id != _VOID and segment.id not in ids:
            yield new_finding(
                'no pixel of the PNG has the id of the segment',
                **_about(facts, segment),
            )


@PAN.rule(
    'PAN002',
    title='id of the PNG that no segment has',
    remedy='add the segment to segments_info, or paint its pixels black '
    '(id 0, which is ignored); the loader ignores them without saying so',
    unit='pixel',
)
def _not_listed(facts: SampleFacts, expected: Expectations) -> Findings:
    if expected.task != 'panoptic':
        return
    listed = {_VOID, *(segment.id for segment in facts.sample.segments)}
    left = {
        value: count
        for value, count in _ids(facts).items()
        if value not in listed
    }
    if left:
        shown = ', '.join(map(str, [*left][:_MAX_SHOWN]))
        more = ', ...' if len(left) > _MAX_SHOWN else ''
        yield new_finding(
            'the PNG has ids that segments_info does not have',
            file=facts.sample.mask,
            value=f'{shown}{more}',
            count=sum(left.values()),
        )


@PAN.rule(
    'PAN003',
    title='area of a segment is not its number of pixels',
    severity=Severity.WARNING,
    remedy='count the pixels anew; the two may be of different versions of '
    'the annotation, or the PNG was scaled',
    unit='segment',
)
def _other_area(facts: SampleFacts, expected: Expectations) -> Findings:
    ids = _ids(facts)
    for segment in facts.sample.segments:
        count = ids.get(segment.id)
        if count and segment.area >= 0 and count != segment.area:
            yield new_finding(
                f'the area of the segment is {segment.area:g}, the PNG has '
                f'{count:,} pixels of it',
                **_about(facts, segment),
            )


@PAN.rule(
    'PAN004',
    title='id of a segment that is used twice in an image, or is 0',
    remedy='give each segment of an image an id of its own, above 0, in the '
    'file and in the PNG: 0 is what no segment is',
    needs='',
    unit='segment',
)
def _segment_ids(facts: SampleFacts, expected: Expectations) -> Findings:
    seen: Counter[int] = Counter()
    for segment in facts.sample.segments:
        seen[segment.id] += 1
        if segment.id == _VOID or seen[segment.id] > 1:
            yield new_finding(
                'the id of the segment is 0'
                if segment.id == _VOID
                else 'the id of the segment is taken by another of the image',
                **_about(facts, segment),
            )


@PAN.rule(
    'PAN005',
    title='PNG of segments without colours',
    remedy='write each id as a colour, red + 256 green + 65536 blue '
    '(panopticapi.utils.id2rgb); the loader takes grey 7 for id 460551',
    subject='mask',
)
def _no_colours(facts: SampleFacts, expected: Expectations) -> Findings:
    """One number for each pixel; colours of a palette are colours."""
    mask = facts.mask
    if expected.task != 'panoptic' or mask is None or mask.error:
        return
    if mask.mode not in (*_COLOURS, 'P', 'PA'):
        yield new_finding(
            f'the PNG must have colours, got mode {mask.mode}',
            file=facts.sample.mask,
            value=mask.mode,
        )


@PAN.rule(
    'PAN006',
    title='isthing of a category is missing, or is not what the config says',
    remedy='write isthing of each category, 1 for what has objects, 0 for '
    'stuff, and metainfo.thing_classes and stuff_classes alike; loaders of '
    'MMDetection fail without it',
    scope='coco',
    subject='file',
)
def _is_thing(facts: CocoFile, expected: Expectations) -> Findings:
    if expected.task != 'panoptic':
        return
    kinds = facts.categories
    for index, name in zip(kinds.index.tolist(), kinds.name):
        thing = facts.things.get(name)
        wanted = name in expected.thing_classes
        if thing is None or (name in expected.classes and thing != wanted):
            yield new_finding(
                f'category {name!r} has no isthing'
                if thing is None
                else f'category {name!r} has isthing {int(thing)}, and is '
                f'{"a thing" if wanted else "stuff"} to the config',
                file=facts.path,
                key=f'categories[{index}]',
                value=name,
            )
