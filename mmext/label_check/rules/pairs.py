"""Rules for what must agree: image and mask, file and annotation."""

from collections.abc import Iterator

from ..expectations import Expectations
from ..facts import ImageFacts, SampleFacts
from ..findings import Finding, Severity
from ..totals import SplitTotals
from .registry import found, rule

__all__ = []

_QUARTER_TURNS = (5, 6, 7, 8)


def _turned(image: ImageFacts) -> tuple[int, int]:
    """Size as loaded: MMCV turns images as EXIF says."""
    if image.orientation in _QUARTER_TURNS:
        return image.height, image.width
    return image.width, image.height


def _sizes(facts: SampleFacts) -> tuple | None:
    """Of the loaded image, of the mask, of the image as stored."""
    image, mask = facts.image, facts.mask
    if image is None or mask is None or not image.width or not mask.width:
        return None
    stored = image.width, image.height
    return _turned(image), (mask.width, mask.height), stored


def _text(size: tuple[int, int]) -> str:
    return f'{size[0]} x {size[1]}'


@rule(
    'PAIR001',
    title='image and mask have different sizes',
    severity=Severity.ERROR,
    remedy='find the mask that belongs to the image, or scale the one that '
    'was scaled back (masks by nearest neighbour)',
    scope='sample',
    subject='mask',
)
def other_size(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Sizes that EXIF does not explain."""
    sizes = _sizes(facts)
    if sizes is None:
        return
    image, mask, stored = sizes
    if mask not in (image, stored):
        yield found(
            f'image and mask must have the same size, got {_text(image)} of '
            f'{facts.sample.image} and {_text(mask)} of the mask',
            file=facts.sample.mask,
            value=_text(mask),
        )


@rule(
    'PAIR002',
    title='EXIF turns the image by 90 degrees, not its mask',
    severity=Severity.ERROR,
    remedy='save the image without the EXIF orientation, as the mask was '
    'made for the pixels as they are stored',
    scope='sample',
    subject='image',
)
def turned_image(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """The mask fits the stored image and not the loaded one."""
    sizes = _sizes(facts)
    if sizes is not None and sizes[1] == sizes[2] != sizes[0]:
        yield found(
            f'EXIF orientation {facts.image.orientation} makes the loaded '
            f'image {_text(sizes[0])}, and its mask stays {_text(sizes[1])}',
            file=facts.sample.image,
            value=str(facts.image.orientation),
        )


@rule(
    'PAIR003',
    title='EXIF turns or mirrors the image, perhaps not its mask',
    severity=Severity.WARNING,
    remedy='sizes do not tell whether the mask was made for the image as '
    'stored or as shown: look at one, and save images without orientation',
    scope='sample',
    subject='image',
)
def maybe_turned(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Half turns, mirrors, and quarter turns of squares."""
    sizes = _sizes(facts)
    if (
        sizes is not None
        and facts.image.orientation != 1
        and sizes[0] == sizes[1] == sizes[2]
    ):
        yield found(
            'MMCV turns or mirrors the image as EXIF orientation '
            f'{facts.image.orientation} says, and does not do so to the mask',
            file=facts.sample.image,
            value=str(facts.image.orientation),
        )


def _noted(facts: SampleFacts) -> tuple | None:
    """Of the loaded image, as annotated, of the image as stored."""
    image, sample = facts.image, facts.sample
    if image is None or not image.width:
        return None
    if not sample.width or not sample.height:
        return None
    stored = image.width, image.height
    return _turned(image), (sample.width, sample.height), stored


@rule(
    'PAIR004',
    title='annotation notes another size than the image has',
    severity=Severity.ERROR,
    remedy='write the size of the image into the annotation; if the image '
    'was scaled after it was annotated, scale the boxes, too',
    scope='sample',
    subject='image',
)
def noted_size(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Width and height that EXIF does not explain."""
    sizes = _noted(facts)
    if sizes is not None and sizes[1] not in (sizes[0], sizes[2]):
        yield found(
            f'the annotation says {_text(sizes[1])}, the image has '
            f'{_text(sizes[0])}',
            file=facts.sample.image,
            value=_text(sizes[1]),
        )


@rule(
    'PAIR005',
    title='annotation is of the image before EXIF turns it',
    severity=Severity.ERROR,
    remedy='save the image without the EXIF orientation, or turn the boxes',
    scope='sample',
    subject='image',
)
def noted_before_turn(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """The annotation's size is the stored one."""
    sizes = _noted(facts)
    if sizes is not None and sizes[1] == sizes[2] != sizes[0]:
        yield found(
            f'the annotation says {_text(sizes[1])}, and EXIF orientation '
            f'{facts.image.orientation} makes the loaded image '
            f'{_text(sizes[0])}',
            file=facts.sample.image,
            value=str(facts.image.orientation),
        )


@rule(
    'PAIR006',
    title='image without mask',
    severity=Severity.ERROR,
    remedy='add the mask, or take the image out of the list; see '
    'seg_map_suffix and data_prefix.seg_map_path',
    scope='sample',
    subject='image',
)
def image_alone(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Semantic samples without a mask; a test split may have none."""
    if (
        expected.task == 'semantic'
        and facts.sample.image
        and not facts.sample.mask
        and not facts.split.startswith('test')
    ):
        yield found('no mask belongs to the image', file=facts.sample.image)


@rule(
    'PAIR007',
    title='mask without image',
    severity=Severity.WARNING,
    remedy='the training does not read it; add the image, or compare '
    'img_suffix and seg_map_suffix with the names',
    scope='sample',
    subject='mask',
)
def mask_alone(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Masks that no image names."""
    sample, image = facts.sample, facts.image
    if sample.mask and not sample.image and image is None:
        yield found('no image belongs to the mask', file=sample.mask)


@rule(
    'PAIR008',
    title='split without samples',
    severity=Severity.ERROR,
    remedy='see whether data_root, data_prefix, ann_file and img_suffix fit '
    'the files that are there',
    scope='split',
    subject='split',
)
def no_samples(
    totals: SplitTotals, expected: Expectations
) -> Iterator[Finding]:
    """An img_suffix that fits no file gives an empty data set."""
    if not totals.num_samples:
        yield found('the data set has no sample', value='0')
