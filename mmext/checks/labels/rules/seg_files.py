"""Rules for files of label maps: channels, bits, formats."""

from ...findings import Severity, found
from ..expectations import Expectations
from ..facts import SampleFacts
from ..loaded import INDEX_MODES
from .registry import SEG, Findings


def _mode(facts: SampleFacts) -> str:
    """Mode of a mask that can be read, else empty."""
    mask = facts.mask
    return '' if mask is None or mask.error else mask.mode


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
def _several_channels(facts: SampleFacts, expected: Expectations) -> Findings:
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
def _palette_with_cv2(facts: SampleFacts, expected: Expectations) -> Findings:
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
def _one_bit_with_cv2(facts: SampleFacts, expected: Expectations) -> Findings:
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
def _lossy(facts: SampleFacts, expected: Expectations) -> Findings:
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
def _one_pixel(facts: SampleFacts, expected: Expectations) -> Findings:
    if _mode(facts) and 1 in (facts.mask.width, facts.mask.height):
        yield found(
            'the mask must have at least 2 x 2 pixels',
            file=facts.sample.mask,
            value=f'{facts.mask.width} x {facts.mask.height}',
        )
