"""Rules for boxes and their classes, one sample at a time."""

import math
from collections import Counter
from collections.abc import Iterator

from ..expectations import Expectations
from ..facts import BoxFacts, SampleFacts
from ..findings import Finding, Severity
from ._sizes import loaded_size
from ._unreadable import has_size
from .registry import found, rule

__all__ = []

# A box may end at the last pixel's index or behind it, by convention.
_SLACK = 1.0
# The loaders of MMDetection drop what is narrower or lower than that.
_MIN_SIZE = 1.0
_MASK_SLACK = 2.0


def _file(facts: SampleFacts) -> str:
    return facts.sample.annotation or facts.sample.image


def _about(facts: SampleFacts, box: BoxFacts) -> dict:
    """Where a box is, and what it is."""
    image = facts.sample.image
    place = box.place
    if image and image != _file(facts):
        place = f'{place} of {image}' if place else image
    return {
        'file': _file(facts),
        'place': place,
        'value': '(' + ', '.join(f'{side:g}' for side in box.box) + ')',
    }


def _finite(box: BoxFacts) -> bool:
    return all(math.isfinite(side) for side in box.box)


def _proper(facts: SampleFacts) -> Iterator[BoxFacts]:
    """Boxes that have an area."""
    for box in facts.sample.boxes:
        x1, y1, x2, y2 = box.box
        if _finite(box) and x2 > x1 and y2 > y1:
            yield box


def _size(facts: SampleFacts) -> tuple[int, int] | None:
    """Width and height of the image, of the file rather than as noted.

    As loaded; or as stored, if the annotation is of the stored image, which
    PAIR005 tells.
    """
    sample, image = facts.sample, facts.image
    noted = sample.width, sample.height
    if not has_size(image):
        return noted if sample.width else None
    stored = image.width, image.height
    return stored if noted == stored else loaded_size(image)


@rule(
    'DET001',
    title='box with NaN or infinity',
    severity=Severity.ERROR,
    remedy='write the box anew, or remove the annotation; one NaN makes the '
    'loss of the whole batch NaN',
    scope='sample',
    needs='boxes',
    subject='image',
    unit='box',
)
def not_finite(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Boxes whose sides are not all finite, though they are numbers."""
    file = facts.annotation
    # VOC002 names what is missing or no number.
    named = '' if file is None else file.error
    for box in facts.sample.boxes:
        if not _finite(box) and f'{box.place}.bndbox.' not in named:
            yield found(
                'a side of the box is not a finite number',
                **_about(facts, box),
            )


@rule(
    'DET002',
    title='box without area',
    severity=Severity.ERROR,
    remedy='x1 < x2 and y1 < y2 must hold; check the order of the sides, '
    '(x, y, width, height) against (x1, y1, x2, y2), or remove the annotation',
    scope='sample',
    needs='boxes',
    subject='image',
    unit='box',
)
def degenerate(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Boxes of width or height 0 or less."""
    for box in facts.sample.boxes:
        x1, y1, x2, y2 = box.box
        if _finite(box) and (x2 <= x1 or y2 <= y1):
            yield found(
                'width or height of the box is 0 or negative',
                **_about(facts, box),
            )


@rule(
    'DET003',
    title='box smaller than a pixel',
    severity=Severity.WARNING,
    remedy='remove or enlarge it; loaders drop it without saying so',
    scope='sample',
    needs='boxes',
    subject='image',
    unit='box',
)
def tiny(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """Boxes that MMDetection's loaders drop for their size."""
    for box in _proper(facts):
        x1, y1, x2, y2 = box.box
        if min(x2 - x1, y2 - y1) < _MIN_SIZE:
            yield found(
                'the box is narrower or lower than one pixel',
                **_about(facts, box),
            )


@rule(
    'DET004',
    title='box outside of the image',
    severity=Severity.ERROR,
    remedy='check whether the annotation belongs to this image, and to its '
    'size now; loaders drop such a box without saying so',
    scope='sample',
    needs='boxes',
    subject='image',
    unit='box',
)
def outside(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """Boxes that share no pixel with the image."""
    size = _size(facts)
    if size is None:
        return
    for box in _proper(facts):
        x1, y1, x2, y2 = box.box
        if x1 >= size[0] or y1 >= size[1] or x2 <= 0 or y2 <= 0:
            yield found(
                'the box has no pixel in common with its image',
                **_about(facts, box),
            )


@rule(
    'DET005',
    title='box reaches beyond the image',
    severity=Severity.WARNING,
    remedy='cut it at the border of the image; the part outside is learnt as '
    'if it could be seen',
    scope='sample',
    needs='boxes',
    subject='image',
    unit='box',
)
def beyond(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """Boxes that lie partly outside, by more than the last pixel."""
    size = _size(facts)
    if size is None:
        return
    for box in _proper(facts):
        x1, y1, x2, y2 = box.box
        inside = x1 < size[0] and y1 < size[1] and x2 > 0 and y2 > 0
        most = max(-x1, -y1, x2 - size[0], y2 - size[1])
        if inside and most > _SLACK:
            yield found(
                'the box reaches beyond the border of its image',
                **_about(facts, box),
            )


@rule(
    'DET006',
    title='class that the data set does not have',
    severity=Severity.ERROR,
    remedy='add the name to metainfo.classes, or rename it in the '
    'annotations; loaders drop such objects, or fail',
    scope='sample',
    needs='boxes',
    per_value=True,
    subject='image',
    unit='object',
)
def unknown_class(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
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
        yield found(
            f'class {name!r} is not among the {len(expected.classes)} classes '
            'of the data set',
            file=_file(facts),
            value=name,
            count=count,
        )


@rule(
    'DET007',
    title='label out of the range of the head',
    severity=Severity.ERROR,
    remedy='set num_classes of the head to the number of classes of the data '
    'set, or correct the labels',
    scope='sample',
    needs='boxes',
    per_value=True,
    subject='image',
    unit='object',
)
def label_out_of_range(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
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
        yield found(
            f'label {label} is out of range, [0, {expected.num_classes - 1}] '
            f'(num_classes={expected.num_classes})',
            file=_file(facts),
            value=str(label),
            count=count,
        )


@rule(
    'DET008',
    title='mask and box disagree',
    severity=Severity.WARNING,
    remedy='compute the box from the mask; check that both belong to the '
    'same object and the same image size',
    scope='sample',
    needs='boxes',
    subject='image',
    unit='object',
)
def mask_and_box(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Boxes that are not those around the masks."""
    for box in _proper(facts):
        if not box.mask_box:
            continue
        off = max(abs(a - b) for a, b in zip(box.box, box.mask_box))
        if off > _MASK_SLACK:
            yield found(
                'the box is not the one around its mask',
                **_about(facts, box),
            )


@rule(
    'DET009',
    title='polygon or RLE that cannot be read',
    severity=Severity.ERROR,
    remedy='draw it anew, or remove the annotation',
    scope='sample',
    needs='boxes',
    subject='image',
    unit='object',
)
def broken_polygon(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Masks that say nothing."""
    for box in facts.sample.boxes:
        if box.polygon_error:
            yield found(
                f'segmentation: {box.polygon_error}', **_about(facts, box)
            )


@rule(
    'DET010',
    title='the same object twice',
    severity=Severity.WARNING,
    remedy='remove one of the two',
    scope='sample',
    needs='boxes',
    subject='image',
    unit='object',
)
def twice(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """Objects with the same box and class."""
    seen: set[tuple] = set()
    for box in _proper(facts):
        key = (box.box, box.label, box.class_name)
        if key in seen:
            yield found(
                'another object has the same box and class',
                **_about(facts, box),
            )
        seen.add(key)


@rule(
    'DET011',
    title='image without objects',
    severity=Severity.INFO,
    remedy='nothing, if there are none to be seen; loaders leave such images '
    'out of the training with filter_cfg=dict(filter_empty_gt=True)',
    scope='sample',
    subject='image',
)
def no_objects(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Images in which nothing is annotated, in a file that can be read."""
    if facts.annotation is not None and facts.annotation.error:
        return
    count = facts.sample.num_boxes
    if count < 0:
        count = len(facts.sample.boxes)
    if expected.task != 'semantic' and not count:
        yield found('no object is annotated', file=facts.sample.image)
