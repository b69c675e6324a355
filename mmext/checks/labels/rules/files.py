"""Rules for files of a sample: each by itself, and those that must agree.

Files that are missing, empty, cut, damaged or refused have one table for all
kinds: a reader gives an error its kind, and the rule of that kind tells of it.
COCO001 is about a file of all samples.
"""

from collections.abc import Callable

from ...findings import Severity, new_finding
from ..expectations import Expectations
from ..facts import (
    ErrorKind,
    MaskFacts,
    Orphan,
    RecordError,
    Sample,
    SampleFacts,
    has_size,
    loaded_size,
)
from ..totals import SplitTotals
from .registry import IMG, MTL, PAIR, SEG, VOC, YOLO, Findings

_MISSING = (ErrorKind.MISSING,)
_DAMAGED = (ErrorKind.CORRUPT, ErrorKind.UNAVAILABLE)
_ALL = tuple(ErrorKind)
_THERE = tuple(kind for kind in ErrorKind if kind is not ErrorKind.MISSING)
# Files of a family: the fields of their facts and of their path in a sample,
# and what they are called.
_FILES = {
    'IMG': (('image', 'image', 'image'),),
    'SEG': (('mask', 'mask', 'mask'),),
    'MTL': (('depth', 'depth', 'depth'), ('normal', 'normal', 'normals')),
    'VOC': (('annotation', 'annotation', 'annotation file'),),
    'YOLO': (('yolo', 'annotation', 'label file'),),
}
_ANEW = 'copy or make the file anew'
_CUT = 'copy the file anew; a download or a full disk may have cut it'
_TOO_LARGE = (
    'the file claims more pixels than are allowed; see whether it is damaged, '
    'and cut large scenes into tiles'
)
# Family, id, kinds of error, title, remedy.
_RULES = (
    (
        IMG,
        'IMG001',
        _MISSING,
        'image is missing where loaders look',
        'add the file, or correct img_suffix, data_prefix or the list that '
        'names it',
    ),
    (
        IMG,
        'IMG002',
        (ErrorKind.EMPTY,),
        'image file is empty',
        'copy the file anew',
    ),
    (IMG, 'IMG003', (ErrorKind.TRUNCATED,), 'image file is cut off', _CUT),
    (
        IMG,
        'IMG004',
        _DAMAGED,
        'image file is damaged or no image',
        'copy the file anew, or save it as PNG or JPEG',
    ),
    (
        IMG,
        'IMG005',
        (ErrorKind.REFUSED,),
        'image is too large to be read',
        _TOO_LARGE,
    ),
    (
        IMG,
        'IMG006',
        (ErrorKind.SUSPECT,),
        'image file may be damaged',
        'look at the image; copy or save it anew if parts are grey or shifted',
    ),
    (
        SEG,
        'SEG015',
        _MISSING,
        'mask is missing',
        'add the file, or correct seg_map_suffix, data_prefix or the list '
        'that names it; the loader finds out in the middle of the training',
    ),
    (SEG, 'SEG016', (ErrorKind.EMPTY,), 'mask file is empty', _ANEW),
    (SEG, 'SEG017', (ErrorKind.TRUNCATED,), 'mask file is cut off', _CUT),
    (
        SEG,
        'SEG018',
        _DAMAGED,
        'mask file is damaged or no label map',
        'copy the file anew, or save it as 8-bit PNG',
    ),
    (
        SEG,
        'SEG019',
        (ErrorKind.REFUSED,),
        'mask is too large to be read',
        _TOO_LARGE,
    ),
    (
        MTL,
        'MTL001',
        _ALL,
        'file of depth or normals is missing or cannot be read',
        f'{_ANEW}: an npy array of numbers, (H, W) or (H, W, 1) of depth, '
        '(H, W, 3) of normals',
    ),
    (
        VOC,
        'VOC001',
        _MISSING,
        'annotation file is missing',
        'add the file, or correct ann_subdir, or the list that names it; '
        'building the data set fails at it',
    ),
    (
        VOC,
        'VOC002',
        _THERE,
        'annotation file that cannot be read, or not all of it',
        'correct the file at the place that is named; until then the loader '
        'fails when the data set is built, or drops what it cannot use',
    ),
    (
        # A file that is missing has no objects.
        YOLO,
        'YOLO001',
        _THERE,
        'label file that cannot be read, or not all of it',
        'write one object a line: the number of its class, then x and y of '
        'the centre, width and height of the box, or the corners of an '
        'outline; building the data set fails until then',
    ),
)


def _check_of(
    files: tuple[tuple[str, str, str], ...], kinds: tuple[ErrorKind, ...]
) -> Callable[[SampleFacts, Expectations], Findings]:
    """Tell of files with an error of some kinds, of each record if known."""

    def check(facts: SampleFacts, expected: Expectations) -> Findings:
        for field, path_field, name in files:
            path = getattr(facts.sample, path_field)
            file = getattr(facts, field)
            error = None if file is None else file.error
            if error is not None and error.kind in kinds:
                suspect = error.kind is ErrorKind.SUSPECT
                verb = 'may be damaged' if suspect else 'cannot be read'
                whole = RecordError('', f'the {name} {verb}: {error}')
                for record in getattr(file, 'errors', ()) or (whole,):
                    yield new_finding(
                        record.message, file=path, key=record.location
                    )
            # MMDetection adds .jpg to the names of Pascal VOC's images.
            if (
                field == 'image'
                and kinds is _MISSING
                and facts.sample.annotation_kind == 'voc'
                and not (path or '.jpg').endswith('.jpg')
            ):
                yield new_finding(
                    'the image must be .jpg: XMLDataset finds no others, and '
                    'fails',
                    file=path,
                    remedy='save the image as .jpg; a PNG file may just be '
                    'renamed',
                )

    return check


for _family, _id, _kinds, _title, _remedy in _RULES:
    _suspect = _kinds == (ErrorKind.SUSPECT,)
    _family.rule(
        _id,
        title=_title,
        severity=Severity.WARNING if _suspect else Severity.ERROR,
        remedy=_remedy,
    )(_check_of(_FILES[_family.letters], _kinds))


@IMG.rule(
    'IMG007',
    title='image of which the loader keeps 8 bits',
    severity=Severity.WARNING,
    remedy="set color_type='unchanged' of LoadImageFromFile, with mean and "
    'std of that range; or save the images with 8 bits, scaled so that they '
    'use them',
)
def _more_bits(facts: SampleFacts, expected: Expectations) -> Findings:
    """16 bits: OpenCV keeps the upper ones, Pillow makes others white."""
    image = facts.image
    if image is not None and image.bits > 8 and expected.keeps_bytes:
        yield new_finding(
            f'the image has {image.bits} bits a channel, of which '
            f'LoadImageFromFile makes 8 ({expected.keeps_bytes})',
            file=facts.sample.image,
            value=str(image.bits),
        )


# Others are told apart by a decoder.
_CHANNELS = {'L': 1, 'I;16': 1, 'RGB': 3, 'RGBA': 4}


@IMG.rule(
    'IMG008',
    title='image with other channels than the model takes',
    remedy="set color_type='color' of LoadImageFromFile, which gives 3 of "
    'any file; or set in_channels of the backbone, mean and std to those of '
    'the images, which must all have as many',
)
def _other_channels(facts: SampleFacts, expected: Expectations) -> Findings:
    image = facts.image
    count = _CHANNELS.get(image.mode) if has_size(image) else None
    if count and expected.channels and count not in expected.channels:
        yield new_finding(
            f"the image has {count} channels, which color_type='unchanged' "
            f'keeps, and the model takes '
            f'{" or ".join(map(str, expected.channels))}',
            file=facts.sample.image,
            value=image.mode,
        )


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
    remedy='find the mask that belongs to the image, or scale the one that '
    'was scaled back (masks by nearest neighbour)',
    subject='mask',
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
    remedy='save the image without the EXIF orientation, as the mask was '
    'made for the pixels as they are stored',
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
    remedy='write the size of the image into the annotation; if the image '
    'was scaled after it was annotated, scale the boxes, too',
    of_records=True,
    fix='write the size of the image file, if width and height of all images '
    'are exchanged',
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
    remedy='add the mask, or take the image out of the list; see '
    'seg_map_suffix and data_prefix.seg_map_path',
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
)
def _mask_alone(facts: SampleFacts, expected: Expectations) -> Findings:
    sample = facts.sample
    if expected.with_images and sample.mask and not sample.image:
        yield new_finding('no image belongs to the mask', file=sample.mask)


@PAIR.rule(
    'PAIR008',
    title='split without samples',
    remedy='see whether data_root, data_prefix, ann_file and img_suffix fit '
    'the files that are there',
    scope='split',
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
)(_orphan_rule(image='no annotation of the data set names the image'))


@PAIR.rule(
    'PAIR011',
    title='images or key points that are not looked at',
    severity=Severity.INFO,
    remedy='nothing; whether they can be read, and are as large as their '
    'labels, is not known',
    scope='split',
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
