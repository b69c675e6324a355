"""Rules for what must agree: image and mask, file and annotation."""

from collections.abc import Callable

from ...findings import Severity, new_finding
from ..expectations import Expectations
from ..facts import (
    MaskFacts,
    Orphan,
    Sample,
    SampleFacts,
    has_size,
    loaded_size,
)
from ..totals import SplitTotals
from .registry import PAIR, Findings

_Size = tuple[int, int]


def _sizes(
    facts: SampleFacts, of: MaskFacts | Sample | None
) -> tuple[_Size, _Size, _Size] | None:
    """Of the loaded image, of its mask or as annotated, of it as stored."""
    image = facts.image
    known = of.width and of.height if isinstance(of, Sample) else has_size(of)
    if not has_size(image) or not known:
        return None
    return (
        loaded_size(image),
        (of.width, of.height),
        (image.width, image.height),
    )


def _text(size: tuple[int, int]) -> str:
    return f'{size[0]} x {size[1]}'


@PAIR.rule(
    'PAIR001',
    title='image and mask have different sizes',
    severity=Severity.ERROR,
    remedy='find the mask that belongs to the image, or scale the one that '
    'was scaled back (masks by nearest neighbour)',
    needs='mask',
    subject='mask',
    blocks_training=True,
)
def _other_size(facts: SampleFacts, expected: Expectations) -> Findings:
    """Sizes that EXIF does not explain."""
    sizes = _sizes(facts, facts.mask)
    sample, mask = facts.sample, facts.mask
    if sizes is None and not sample.image and sample.width and has_size(mask):
        # Maps beside boxes: the image is looked at with those.
        noted = sample.width, sample.height
        sizes = noted, (mask.width, mask.height), noted
    if sizes is None:
        return
    image, mask, stored = sizes
    if mask not in (image, stored):
        yield new_finding(
            f'image and mask must have the same size, got {_text(image)} of '
            f'{facts.sample.image or "the image"} and {_text(mask)} of the '
            'mask',
            file=facts.sample.mask,
            value=_text(mask),
        )


@PAIR.rule(
    'PAIR002',
    title='EXIF turns the image by 90 degrees, not its mask',
    severity=Severity.ERROR,
    remedy='save the image without the EXIF orientation, as the mask was '
    'made for the pixels as they are stored',
    blocks_training=True,
)
def _turned_image(facts: SampleFacts, expected: Expectations) -> Findings:
    sizes = _sizes(facts, facts.mask)
    if sizes is not None and sizes[1] == sizes[2] != sizes[0]:
        yield new_finding(
            f'EXIF orientation {facts.image.orientation} makes the loaded '
            f'image {_text(sizes[0])}, and its mask stays {_text(sizes[1])}',
            file=facts.sample.image,
            value=str(facts.image.orientation),
        )


@PAIR.rule(
    'PAIR003',
    title='EXIF turns or mirrors the image, perhaps not its labels',
    severity=Severity.WARNING,
    remedy='sizes do not tell whether the labels were made for the image as '
    'stored or as shown: look at one, and save images without orientation',
)
def _maybe_turned(facts: SampleFacts, expected: Expectations) -> Findings:
    """Half turns, mirrors, quarter turns of squares, and of YOLO any turn."""
    image, sample = facts.image, facts.sample
    if not has_size(image) or image.orientation == 1:
        return
    sizes, what = _sizes(facts, facts.mask), 'mask'
    if sizes is None and (sample.num_boxes > 0 or sample.boxes):
        # Files of YOLO, and some of Pascal VOC, note no size.
        sizes, what = _sizes(facts, sample) or (0, 0, 0), 'boxes'
    if sizes is not None and sizes[0] == sizes[1] == sizes[2]:
        yield new_finding(
            'MMCV turns or mirrors the image as EXIF orientation '
            f'{image.orientation} says, and does not do so to the {what}',
            file=sample.image,
            value=str(image.orientation),
        )


@PAIR.rule(
    'PAIR004',
    title='annotation notes another size than the image has',
    severity=Severity.ERROR,
    remedy='write the size of the image into the annotation; if the image '
    'was scaled after it was annotated, scale the boxes, too',
    of_records=True,
    fix='write the size of the image file',
    fixed_in=('coco', 'voc'),
)
def _noted_size(facts: SampleFacts, expected: Expectations) -> Findings:
    sizes = _sizes(facts, facts.sample)
    if sizes is not None and sizes[1] not in (sizes[0], sizes[2]):
        yield new_finding(
            f'the annotation says {_text(sizes[1])}, the image has '
            f'{_text(sizes[0])}',
            file=facts.sample.image,
            value=_text(sizes[1]),
        )


@PAIR.rule(
    'PAIR005',
    title='annotation is of the image before EXIF turns it',
    severity=Severity.ERROR,
    remedy='save the image without the EXIF orientation, or turn the boxes',
    of_records=True,
)
def _noted_before_turn(facts: SampleFacts, expected: Expectations) -> Findings:
    sizes = _sizes(facts, facts.sample)
    if sizes is not None and sizes[1] == sizes[2] != sizes[0]:
        yield new_finding(
            f'the annotation says {_text(sizes[1])}, and EXIF orientation '
            f'{facts.image.orientation} makes the loaded image '
            f'{_text(sizes[0])}',
            file=facts.sample.image,
            value=str(facts.image.orientation),
        )


@PAIR.rule(
    'PAIR006',
    title='image without mask',
    severity=Severity.ERROR,
    remedy='add the mask, or take the image out of the list; see '
    'seg_map_suffix and data_prefix.seg_map_path',
    blocks_training=True,
)
def _image_alone(facts: SampleFacts, expected: Expectations) -> Findings:
    """Semantic samples without a mask; a test split may have none."""
    if (
        expected.task == 'semantic'
        and facts.sample.image
        and not facts.sample.mask
        and not facts.split.startswith('test')
    ):
        yield new_finding(
            'no mask belongs to the image', file=facts.sample.image
        )


@PAIR.rule(
    'PAIR007',
    title='mask without image',
    severity=Severity.WARNING,
    remedy='the training does not read it; add the image, or compare '
    'img_suffix and seg_map_suffix with the names',
    needs='mask',
    subject='mask',
    blocks_training=True,
)
def _mask_alone(facts: SampleFacts, expected: Expectations) -> Findings:
    sample = facts.sample
    if expected.with_images and sample.mask and not sample.image:
        yield new_finding('no image belongs to the mask', file=sample.mask)


@PAIR.rule(
    'PAIR008',
    title='split without samples',
    severity=Severity.ERROR,
    remedy='see whether data_root, data_prefix, ann_file and img_suffix fit '
    'the files that are there',
    scope='split',
    needs='',
    subject='split',
)
def _no_samples(totals: SplitTotals, expected: Expectations) -> Findings:
    """An img_suffix that fits no file gives an empty data set."""
    if not totals.num_samples:
        yield new_finding('the data set has no sample', value='0')


def _orphan_rule(**messages: str) -> Callable:
    """A rule for files that no sample has, of some kinds."""

    def check(orphan: Orphan, expected: Expectations) -> Findings:
        if orphan.kind in messages:
            yield new_finding(messages[orphan.kind], file=orphan.path)

    return check


PAIR.rule(
    'PAIR009',
    title='label file that no sample reads',
    severity=Severity.WARNING,
    remedy='the training does not see it: add its image, or compare suffixes '
    'and lists with the names; if it is to stay out, move it away',
    scope='orphan',
    needs='',
    subject='file',
)(
    _orphan_rule(
        mask='no sample of the data set reads this mask',
        annotation='no sample of the data set reads this annotation file',
    )
)


PAIR.rule(
    'PAIR010',
    title='image that nothing annotates',
    severity=Severity.INFO,
    remedy='nothing, if it is kept for later; else annotate it, or move it '
    'away',
    scope='orphan',
    needs='',
)(_orphan_rule(image='no annotation of the data set names the image'))


@PAIR.rule(
    'PAIR011',
    title='images or key points that are not looked at',
    severity=Severity.INFO,
    remedy='nothing; whether they can be read, and are as large as their '
    'labels, is not known',
    scope='split',
    needs='',
    subject='split',
)
def _not_looked_at(totals: SplitTotals, expected: Expectations) -> Findings:
    """Volumes and arrays, which pipelines load by themselves, and poses."""
    if expected.unread:
        yield new_finding(
            f'images that end with {expected.unread} are not read',
            value=expected.unread,
        )
    if expected.kpt_shape:
        yield new_finding(
            'key points are not used: only the boxes of the lines are read',
            value=f'kpt_shape={list(expected.kpt_shape)}',
            remedy='nothing, to train a detector; MMPose trains on key points',
        )
