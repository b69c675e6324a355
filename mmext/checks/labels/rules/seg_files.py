"""Rules for files of label maps: channels, bits, damage."""

from collections.abc import Iterator

from ...findings import Finding, Severity, found
from ..expectations import Expectations
from ..facts import ErrorKind, SampleFacts
from ..loaded import INDEX_MODES
from .registry import SEG


def _mode(facts: SampleFacts) -> str:
    """Mode of a mask that can be read, else empty."""
    mask = facts.mask
    return '' if mask is None or mask.error else mask.mode


def _unreadable(facts: SampleFacts, *kinds: ErrorKind) -> Iterator[Finding]:
    error = facts.mask.error if facts.mask is not None else None
    if error is not None and error.kind in kinds:
        yield found(
            f'the mask cannot be read: {error}', file=facts.sample.mask
        )


@SEG.rule(
    'SEG010',
    title='mask with several channels',
    severity=Severity.ERROR,
    remedy='save the masks with one channel that holds the class index, each '
    'colour converted to its class',
    blocks_training=True,
    fix='write one channel, if all channels are equal',
    fixed_in=('mask',),
)
def several_channels(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Colours, or indices with alpha."""
    mode = _mode(facts)
    if expected.task == 'panoptic':
        return
    if mode and mode not in INDEX_MODES:
        yield found(
            f'the mask must have one channel, got mode {mode}',
            file=facts.sample.mask,
            value=mode,
        )


@SEG.rule(
    'SEG011',
    title='palette mask, which OpenCV turns into colours',
    severity=Severity.ERROR,
    remedy="set imdecode_backend='pillow' of LoadAnnotations, which gives the "
    'indices, or save the masks as 8-bit grey',
    blocks_training=True,
    fix='write the indices as grey values, without a palette',
    fixed_in=('mask',),
)
def palette_with_cv2(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Mode P with the backend cv2."""
    if expected.task == 'panoptic':
        return
    if _mode(facts) == 'P' and expected.loader_backend == 'cv2':
        yield found(
            "the mask has a palette (mode P), and the loader's backend cv2 "
            'makes three channels of its colours',
            file=facts.sample.mask,
            value='P',
        )


@SEG.rule(
    'SEG012',
    title='1-bit mask, which OpenCV turns into 0 and 255',
    severity=Severity.ERROR,
    remedy="set imdecode_backend='pillow' of LoadAnnotations, which gives 0 "
    'and 1, or save the masks as 8-bit grey',
    blocks_training=True,
    fix='write the values with 8 bits',
    fixed_in=('mask',),
)
def one_bit_with_cv2(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Mode 1 with the backend cv2."""
    if _mode(facts) == '1' and expected.loader_backend == 'cv2':
        yield found(
            "the mask has 1 bit, and the loader's backend cv2 makes 0 and "
            '255 of 0 and 1',
            file=facts.sample.mask,
            value='1',
        )


@SEG.rule(
    'SEG013',
    title='mask in a lossy format',
    severity=Severity.WARNING,
    remedy='lossy compression changes labels at the borders of objects; make '
    'the masks anew as PNG, as a conversion keeps the damage',
)
def lossy(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """Masks whose bytes are JPEG or lossy WebP, whatever their name is."""
    if _mode(facts) and facts.mask.lossy:
        yield found(
            f'the mask is {facts.mask.lossy}, which does not keep values',
            file=facts.sample.mask,
            value=facts.mask.lossy,
        )


@SEG.rule(
    'SEG014',
    title='mask one pixel high or wide',
    severity=Severity.ERROR,
    remedy='the loader squeezes masks, so that one of the two axes is lost; '
    'take the sample out of the data set',
    blocks_training=True,
)
def one_pixel(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """Masks of a single row or column."""
    if _mode(facts) and 1 in (facts.mask.width, facts.mask.height):
        yield found(
            'the mask must have at least 2 x 2 pixels',
            file=facts.sample.mask,
            value=f'{facts.mask.width} x {facts.mask.height}',
        )


@SEG.rule(
    'SEG015',
    title='mask is missing',
    severity=Severity.ERROR,
    remedy='add the file, or correct seg_map_suffix, data_prefix or the list '
    'that names it; the loader finds out in the middle of the training',
    blocks_training=True,
)
def missing(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file that is named and not there."""
    yield from _unreadable(facts, ErrorKind.MISSING)


@SEG.rule(
    'SEG016',
    title='mask file is empty',
    severity=Severity.ERROR,
    remedy='copy or make the file anew',
    blocks_training=True,
)
def empty(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file of no bytes."""
    yield from _unreadable(facts, ErrorKind.EMPTY)


@SEG.rule(
    'SEG017',
    title='mask file is cut off',
    severity=Severity.ERROR,
    remedy='copy the file anew; a download or a full disk may have cut it',
    blocks_training=True,
)
def truncated(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file that ends early."""
    yield from _unreadable(facts, ErrorKind.TRUNCATED)


@SEG.rule(
    'SEG018',
    title='mask file is damaged or no label map',
    severity=Severity.ERROR,
    remedy='copy the file anew, or save it as 8-bit PNG',
    blocks_training=True,
)
def corrupt(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file that cannot be decoded."""
    yield from _unreadable(facts, ErrorKind.CORRUPT, ErrorKind.UNAVAILABLE)


@SEG.rule(
    'SEG019',
    title='mask is too large to be read',
    severity=Severity.ERROR,
    remedy='the file claims more pixels than are allowed; see whether it is '
    'damaged, and cut large scenes into tiles',
    blocks_training=True,
)
def refused(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file that was not decoded for its size."""
    yield from _unreadable(facts, ErrorKind.REFUSED)
