"""Rules for boxes and their classes, one sample at a time."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ....datasets import box_limits
from ...findings import Severity, new_finding
from ..expectations import Expectations
from ..facts import (
    BoxFacts,
    ErrorKind,
    SampleFacts,
    box_size,
)
from .classes import written_like
from .registry import DET, VOC, YOLO, Findings


def _file(facts: SampleFacts) -> str:
    return facts.sample.annotation or facts.sample.image


def _image(facts: SampleFacts) -> str:
    """The image, if it is not the file that a finding names."""
    image = facts.sample.image or facts.sample.name
    return image if image != _file(facts) else ''


def _about(facts: SampleFacts, box: BoxFacts) -> dict:
    """Where a box is, and what it is."""
    return {
        'file': _file(facts),
        'key': box.location,
        'image': _image(facts),
        'value': '(' + ', '.join(f'{side:g}' for side in box.box) + ')',
    }


def _box_rule(is_wrong: Callable[[BoxFacts], Any], message: str) -> Callable:
    """A rule for boxes that are wrong by themselves."""

    def check(facts: SampleFacts, expected: Expectations) -> Findings:
        for box in facts.sample.boxes:
            if is_wrong(box):
                yield new_finding(message, **_about(facts, box))

    return check


def _border_rule(is_wrong: Callable[..., Any], message: str) -> Callable:
    """A rule for boxes beside the size of their image, where it is known."""

    def check(facts: SampleFacts, expected: Expectations) -> Findings:
        size = box_size(facts)
        for box in facts.sample.boxes if size[0] else ():
            if is_wrong(box.box, *size):
                yield new_finding(message, **_about(facts, box))

    return check


@DET.rule(
    'DET001',
    title='box with NaN or infinity',
    remedy='write the box anew, or remove the annotation; one NaN makes the '
    'loss of the whole batch NaN',
    unit='box',
    fix='remove the object',
)
def _not_finite(facts: SampleFacts, expected: Expectations) -> Findings:
    # XMLDataset makes whole numbers of them.
    message = 'a side of the box is not a finite number'
    if facts.annotation or facts.yolo:
        message += ', and the loader fails at it'
    for box in facts.sample.boxes:
        # VOC002 names what is missing or no number.
        if not box_limits.is_finite(box.box) and not box.unreadable:
            yield new_finding(message, **_about(facts, box))


DET.rule(
    'DET002',
    title='box without area',
    remedy='x1 < x2 and y1 < y2 must hold; check the order of the sides, '
    '(x, y, width, height) against (x1, y1, x2, y2), or remove the annotation',
    unit='box',
    fix='remove the object, if its width or height is 0',
)(
    _box_rule(
        lambda box: box_limits.lacks_area(box.box),
        'width or height of the box is 0 or negative',
    )
)


DET.rule(
    'DET003',
    title='box smaller than a pixel',
    severity=Severity.WARNING,
    remedy='remove or enlarge it; loaders drop it without saying so',
    unit='box',
)(
    _box_rule(
        lambda box: box_limits.is_tiny(box.box),
        'the box is narrower or lower than one pixel',
    )
)


DET.rule(
    'DET004',
    title='box outside of the image',
    remedy='check whether the annotation belongs to this image, and to its '
    'size now; loaders drop such a box without saying so',
    unit='box',
)(
    _border_rule(
        box_limits.is_outside,
        'the box has no pixel in common with its image',
    )
)


DET.rule(
    'DET005',
    title='box reaches beyond the image',
    severity=Severity.WARNING,
    remedy='cut it at the border of the image; the part outside is learnt as '
    'if it could be seen',
    unit='box',
)(
    _border_rule(
        box_limits.is_beyond,
        'the box reaches beyond the border of its image',
    )
)


@DET.rule(
    'DET006',
    title='class that the data set does not have',
    remedy='add the name to metainfo.classes, or rename it in the '
    'annotations; loaders drop such objects, or fail',
    per_value=True,
)
def _unknown_class(facts: SampleFacts, expected: Expectations) -> Findings:
    """Names that are not among the classes.

    A box without a name is the matter of the annotation file: COCO006 and
    COCO012 tell of categories, VOC002 of objects.
    """
    if not expected.classes:
        return
    names = Counter(
        box.class_name
        for box in facts.sample.boxes
        if box.label < 0 and box.class_name
    )
    for name, count in sorted(names.items()):
        like = written_like(name, expected.classes)
        yield new_finding(
            f'class {name!r} is not among the {len(expected.classes)} classes '
            'of the data set' + (f', but {like!r} is' if like else ''),
            file=_file(facts),
            image='' if facts.sample.annotation_kind else _image(facts),
            remedy=f'write {like!r} in the annotations: loaders compare '
            'letter by letter, and drop these objects without saying so'
            if like
            else '',
            value=name,
            count=count,
        )


@DET.rule(
    'DET007',
    symptoms=('device-side assert triggered',),
    title='label out of the range of the head',
    remedy='set num_classes of the head to the number of classes of the data '
    'set, or correct the labels',
    per_value=True,
)
def _label_out_of_range(
    facts: SampleFacts, expected: Expectations
) -> Findings:
    """Labels that the head has no class for.

    Where such a label has a name, CFG003 says that the head lacks a class.
    """
    if not expected.num_classes:
        return
    most = max(expected.num_classes, len(expected.classes))
    labels = Counter(
        box.label for box in facts.sample.boxes if box.label >= most
    )
    for label, count in sorted(labels.items()):
        yield new_finding(
            f'label {label} is out of range, [0, {expected.num_classes - 1}] '
            f'(num_classes={expected.num_classes})',
            file=_file(facts),
            image='' if facts.sample.annotation_kind else _image(facts),
            value=str(label),
            count=count,
        )


@DET.rule(
    'DET008',
    title='mask and box disagree',
    severity=Severity.WARNING,
    remedy='compute the box from the mask; check that both belong to the '
    'same object and the same image size',
)
def _mask_and_box(facts: SampleFacts, expected: Expectations) -> Findings:
    for box in facts.sample.boxes:
        if not box.mask_box:
            continue
        if not box_limits.is_off_mask(box.box, box.mask_box):
            continue
        x1, y1, x2, y2 = box.box
        # What a loader takes for width and height.
        written = x1, y1, x2 - x1, y2 - y1
        if not box_limits.is_off_mask(written, box.mask_box):
            yield new_finding(
                'the numbers of bbox are (x1, y1, x2, y2) of the mask, not '
                '(x, y, width, height)',
                severity=Severity.ERROR,
                remedy='write bbox as (x, y, width, height): the training '
                'learns boxes that reach far beyond their objects',
                **_about(facts, box),
            )
        else:
            yield new_finding(
                'the box is not the one around its mask',
                **_about(facts, box),
            )


@DET.rule(
    'DET009',
    title='polygon or RLE that cannot be read',
    remedy='draw it anew, or remove the annotation',
)
def _broken_polygon(facts: SampleFacts, expected: Expectations) -> Findings:
    for box in facts.sample.boxes:
        if box.polygon_error:
            message = f'segmentation: {box.polygon_error}'
            yield new_finding(message, **_about(facts, box))


@DET.rule(
    'DET010',
    title='the same object twice',
    severity=Severity.WARNING,
    remedy='remove one of the two',
)
def _twice(facts: SampleFacts, expected: Expectations) -> Findings:
    equal: set[tuple] = set()
    cells: dict[tuple, dict] = {}
    for box in facts.sample.boxes:
        kind = box.label, box.class_name
        if not box_limits.has_area(box.box):
            continue
        if (*kind, box.box) in equal:
            message = 'another object has the same box and class'
            yield new_finding(message, **_about(facts, box))
        elif not (
            box.ignored
            or box_limits.is_tiny(box.box)
            or _is_new(cells.setdefault(kind, {}), box.box)
        ):
            message = 'another object of the class has nearly the same box'
            yield new_finding(message, **_about(facts, box))
        equal.add((*kind, box.box))


def _is_new(cells: dict, box: Sequence[float]) -> bool:
    """Whether none of the boxes in the cells is near; it is put there then.

    Cells are as wide as near sides differ, in four dimensions, so that few of
    many boxes are compared.
    """
    places = [math.floor(side / box_limits.NEAR_TOLERANCE) for side in box]
    near = [cells]
    for place in places:
        around = place - 1, place, place + 1
        near = [cell[at] for cell in near for at in around if at in cell]
    if any(box_limits.is_near(box, other) for own in near for other in own):
        return False
    for place in places[:-1]:
        cells = cells.setdefault(place, {})
    cells.setdefault(places[-1], []).append(box)
    return True


@DET.rule(
    'DET012',
    title='one box with two classes',
    severity=Severity.WARNING,
    remedy='remove one of the two objects, unless it is meant to have both '
    'classes: a detector with softmax is taught either of them by chance',
)
def _two_classes(facts: SampleFacts, expected: Expectations) -> Findings:
    """Objects of different classes whose boxes are equal.

    Of those that are trained: no crowds, no classes that are dropped.
    """
    labels: dict[tuple, set[int]] = {}
    for box in facts.sample.boxes:
        if box.ignored or box.label < 0 or not box_limits.has_area(box.box):
            continue
        others = labels.setdefault(box.box, set())
        if others - {box.label}:
            yield new_finding(
                'an object of another class has the same box',
                **_about(facts, box),
            )
        others.add(box.label)


@DET.rule(
    'DET011',
    title='image without objects',
    severity=Severity.INFO,
    remedy='nothing, if there are none to be seen; loaders leave such images '
    'out of the training with filter_cfg=dict(filter_empty_gt=True)',
    needs='',
    unit='',
)
def _no_objects(facts: SampleFacts, expected: Expectations) -> Findings:
    if facts.annotation is not None and facts.annotation.error:
        return
    # A file of lines that is missing has no objects.
    lines = facts.yolo.error if facts.yolo is not None else None
    if lines is not None and lines.kind is not ErrorKind.MISSING:
        return
    count = facts.sample.num_boxes
    if count < 0:
        count = len(facts.sample.boxes)
    if expected.task not in ('semantic', 'unlabelled') and not count:
        yield new_finding(
            'no object is annotated',
            file=facts.sample.image,
            image='' if facts.sample.image else facts.sample.name,
        )


@VOC.rule(
    'VOC004',
    title='annotation file with a size of 0',
    severity=Severity.WARNING,
    remedy='write the width and height of the image; loaders go by them, not '
    'by the image',
    fix='write the size of the image file',
)
def _no_size(facts: SampleFacts, expected: Expectations) -> Findings:
    """A ``<size>`` that holds 0, which min_size of filter_cfg drops."""
    file = facts.annotation
    if file is None or file.error or not file.has_size:
        return
    if file.width and file.height:
        return
    dropped = expected.filter_cfg.get('min_size', 0) > 0
    yield new_finding(
        'the file says that the image has no width or height, and '
        + (
            'min_size of filter_cfg drops it from the training'
            if dropped
            else 'a min_size of filter_cfg would drop it from the training'
        ),
        severity=Severity.ERROR if dropped else Severity.WARNING,
        file=facts.sample.annotation,
        key='size',
        value=f'{file.width} x {file.height}',
    )


@VOC.rule(
    'VOC003',
    title='annotation file names another image',
    severity=Severity.WARNING,
    remedy='see whether the two were exchanged: loaders go by the name of the '
    'annotation file and do not read <filename>',
)
def _other_image(facts: SampleFacts, expected: Expectations) -> Findings:
    file, image = facts.annotation, facts.sample.image
    if file is None or not file.image or not image:
        return
    if _stem(file.image) != _stem(image):
        yield new_finding(
            'filename of the annotation is not the image it is read for',
            file=facts.sample.annotation,
            key='filename',
            value=file.image,
        )


@YOLO.rule(
    'YOLO002',
    title='coordinates that are no fractions of the picture',
    remedy='divide x and width by the width of the picture, y and height by '
    'its height; building the data set fails until then',
)
def _no_fraction(facts: SampleFacts, expected: Expectations) -> Findings:
    for index in facts.yolo.range if facts.yolo is not None else ():
        yield new_finding(
            index.message, file=facts.sample.annotation, key=index.location
        )


def _stem(path: str) -> str:
    name = path.replace('\\', '/').rpartition('/')[2]
    return name.rpartition('.')[0] or name
