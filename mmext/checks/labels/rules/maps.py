"""Rules for label maps, depth and normals: values, channels, formats.

Values of label maps are those after what the loader does to them; one that is
wrong is found by one rule, the one that knows most about it.
"""

from collections.abc import Callable, Iterator

from ...findings import Severity, new_finding
from ..expectations import (
    INDEX_MODES,
    Expectations,
    holds_indices,
    loaded_values,
)
from ..facts import MaskFacts, SampleFacts, has_size
from ..totals import SplitTotals
from .registry import MTL, MTL_VALUES, SEG, SEG_VALUES, Findings

_FEW_CLASSES = 2
_BLACK_AND_WHITE = frozenset((0, 255))


def _wrong(
    facts: SampleFacts, expected: Expectations, kind: str
) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Stored values of a kind, with count and the first pixel."""
    mask = facts.mask
    if not holds_indices(mask, expected):
        return
    table = loaded_values(expected)
    for (value, count), first in zip(mask.values, mask.first):
        if value not in table.fine and table.kind_of(value) == kind:
            yield value, count, divmod(first, mask.width)


def _about(
    facts: SampleFacts, value: int, count: int, pixel: tuple[int, int]
) -> dict:
    """Where a stored value is, and how often."""
    return {
        'file': facts.sample.mask,
        'pixel': pixel,
        'value': str(value),
        'count': count,
    }


def _allowed(expected: Expectations) -> str:
    return (
        f'labels must be in [0, {expected.num_classes - 1}] '
        f'(num_classes={expected.num_classes}, '
        f'ignore_index={expected.ignore_index})'
    )


_IF_REDUCED = (
    'if 0 is a class, set reduce_zero_label=False of the data set; if it is '
    'not, set ignore_index=255 of the heads'
)


def _out_of_range(
    kind: str, *, black_and_white: bool | None = None
) -> Callable:
    """A rule with a finding for each value of a kind.

    ``black_and_white``: Only of masks that are, or that are not.
    """

    def check(facts: SampleFacts, expected: Expectations) -> Findings:
        if black_and_white is not None and (
            facts.mask is None
            or _is_black_and_white(facts.mask, expected) != black_and_white
        ):
            return
        for value, count, pixel in _wrong(facts, expected, kind):
            loaded = loaded_values(expected).loaded(value)
            what = f'label {value} is'
            if loaded != value:
                what = f'label {loaded}, which the loader makes of {value}, is'
            is_reduced = kind == 'void' and loaded != value
            yield new_finding(
                f'{what} out of range; {_allowed(expected)}',
                remedy=_IF_REDUCED if is_reduced else '',
                **_about(facts, value, count, pixel),
            )

    return check


def _is_black_and_white(mask: MaskFacts, expected: Expectations) -> bool:
    return (
        0 < expected.num_classes <= _FEW_CLASSES
        and not expected.reduce_zero_label
        and not expected.label_map
        and {value for value, _ in mask.values} <= _BLACK_AND_WHITE
    )


SEG_VALUES.rule(
    'SEG001',
    symptoms=(
        'device-side assert triggered',
        'is out of bounds.',
    ),
    title='label out of range',
    remedy='compare num_classes of the head with the classes of the data '
    'set, and with what its label_map and reduce_zero_label make of masks',
    per_value=True,
)(_out_of_range('bad'))


@SEG_VALUES.rule(
    'SEG002',
    title='value beyond 8 bits, which the loader wraps to another',
    remedy='LoadAnnotations casts masks to uint8, so that 256 becomes 0; '
    'write masks of 8 bits that hold class indices, such as the class of '
    'each instance id (26001 of Cityscapes is class id 26)',
)
def _wraps(facts: SampleFacts, expected: Expectations) -> Findings:
    wrong = list(_wrong(facts, expected, 'wraps'))
    if wrong:
        value, _, pixel = wrong[0]
        loaded = loaded_values(expected).value[value % 256]
        yield new_finding(
            f'{len(wrong)} values are not in [0, 255], and the loader wraps '
            f'them: {value} becomes {loaded}',
            **_about(facts, value, sum(count for _, count, _ in wrong), pixel),
        )


@SEG_VALUES.rule(
    'SEG003',
    title='value that the label_map does not have',
    remedy='the loader leaves such values as they are; make the label_map '
    '(from metainfo.classes of the data set) cover all values of the masks, '
    'or correct the masks',
    per_value=True,
)
def _unmapped(facts: SampleFacts, expected: Expectations) -> Findings:
    for value, count, pixel in _wrong(facts, expected, 'unmapped'):
        loaded = loaded_values(expected).value[value]
        yield new_finding(
            f'value {value} is not in the label_map and stays {loaded}; '
            f'{_allowed(expected)}',
            **_about(facts, value, count, pixel),
        )


SEG_VALUES.rule(
    'SEG004',
    title='255 is not what the loss ignores',
    remedy='255 is what masks, padding (seg_pad_val of the data '
    'preprocessor) and reduce_zero_label mark as "to be ignored"; set '
    'ignore_index=255 of the heads, or let masks and seg_pad_val hold the '
    'value that they ignore',
    per_value=True,
)(_out_of_range('void', black_and_white=False))


SEG_VALUES.rule(
    'SEG005',
    title='black and white mask, 0 and 255',
    remedy='save the masks with 1 in place of 255, or map 255 to 1 by the '
    'label_map of the data set',
)(_out_of_range('void', black_and_white=True))


SEG_VALUES.rule(
    'SEG006',
    title='254, an ignored 255 reduced by one',
    remedy='reduce_zero_label, or a converter that did the same, has turned '
    '255 into 254; write the masks with 255 again, or set '
    'reduce_zero_label=False if they were reduced already',
    per_value=True,
)(_out_of_range('reduced'))


@SEG_VALUES.rule(
    'SEG007',
    title='mask in which all is ignored',
    severity=Severity.WARNING,
    remedy='a batch of such masks has no loss, and with some settings NaN; '
    'take the sample out of the data set, or label it',
)
def _all_ignored(facts: SampleFacts, expected: Expectations) -> Findings:
    mask = facts.mask
    if not holds_indices(mask, expected) or not mask.values:
        return
    table = loaded_values(expected)
    kinds = ('ignored', 'wide_void')
    if all(table.kind_of(value) in kinds for value, _ in mask.values):
        yield new_finding(
            'all pixels are ignored '
            f'(ignore_index={expected.ignore_index} after loading)',
            file=facts.sample.mask,
            count=sum(count for _, count in mask.values),
        )


@SEG_VALUES.rule(
    'SEG008',
    title='-1 or 65535 that is ignored only because it wraps to 255',
    severity=Severity.WARNING,
    remedy='write masks of 8 bits with 255; a loader that does not cast to '
    'uint8 would find a label out of range',
    per_value=True,
    fix='write 255',
)
def _wide_void(facts: SampleFacts, expected: Expectations) -> Findings:
    for value, count, pixel in _wrong(facts, expected, 'wide_void'):
        yield new_finding(
            f'{value} wraps to {value % 256}, which is ignored',
            **_about(facts, value, count, pixel),
        )


@SEG_VALUES.rule(
    'SEG009',
    title='black and white masks of which the white is ignored',
    remedy='the second class has no pixel, so nothing is learned; save the '
    'masks with 1 in place of 255',
    scope='split',
    subject='split',
)
def _white_is_ignored(totals: SplitTotals, expected: Expectations) -> Findings:
    if (
        expected.num_classes == _FEW_CLASSES
        and expected.ignore_index == max(_BLACK_AND_WHITE)
        and not expected.reduce_zero_label
        and not expected.label_map
        and totals.pixels.keys() == _BLACK_AND_WHITE
        and not totals.num_outside
        and all(
            holds_indices(MaskFacts(mode=mode), expected)
            for mode in totals.modes
        )
    ):
        yield new_finding(
            'all masks hold 0 and 255 only, and 255 is ignored '
            '(num_classes=2, ignore_index=255)',
            value='255',
            count=totals.pixels[255],
        )


def _mode(facts: SampleFacts) -> str:
    """Mode of a mask that can be read, else empty."""
    mask = facts.mask
    return '' if mask is None or mask.error else mask.mode


@SEG.rule(
    'SEG010',
    symptoms=('only batches of spatial targets supported',),
    title='mask with several channels',
    remedy='save the masks with one channel that holds the class index, each '
    'colour converted to its class',
    fix='write one channel, if all channels are equal',
)
def _several_channels(facts: SampleFacts, expected: Expectations) -> Findings:
    mode = _mode(facts)
    if expected.task == 'panoptic':
        return
    if mode and mode not in INDEX_MODES:
        yield new_finding(
            f'the mask must have one channel, got mode {mode}',
            file=facts.sample.mask,
            value=mode,
        )


@SEG.rule(
    'SEG011',
    title='palette mask, which OpenCV turns into colours',
    remedy="set imdecode_backend='pillow' of LoadAnnotations, which gives the "
    'indices, or save the masks as 8-bit grey',
    fix='write the indices as grey values, without a palette',
)
def _palette_with_cv2(facts: SampleFacts, expected: Expectations) -> Findings:
    if expected.task == 'panoptic':
        return
    if _mode(facts) == 'P' and expected.loader_backend == 'cv2':
        yield new_finding(
            "the mask has a palette (mode P), and the loader's backend cv2 "
            'makes three channels of its colours',
            file=facts.sample.mask,
            value='P',
        )


@SEG.rule(
    'SEG012',
    title='1-bit mask, which OpenCV turns into 0 and 255',
    remedy="set imdecode_backend='pillow' of LoadAnnotations, which gives 0 "
    'and 1, or save the masks as 8-bit grey',
    fix='write the values with 8 bits',
)
def _one_bit_with_cv2(facts: SampleFacts, expected: Expectations) -> Findings:
    if _mode(facts) == '1' and expected.loader_backend == 'cv2':
        yield new_finding(
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
        yield new_finding(
            f'the mask is {facts.mask.lossy}, which does not keep values',
            file=facts.sample.mask,
            value=facts.mask.lossy,
        )


@SEG.rule(
    'SEG014',
    title='mask one pixel high or wide',
    remedy='the loader squeezes masks, so that one of the two axes is lost; '
    'take the sample out of the data set',
)
def _one_pixel(facts: SampleFacts, expected: Expectations) -> Findings:
    if _mode(facts) and 1 in (facts.mask.width, facts.mask.height):
        yield new_finding(
            'the mask must have at least 2 x 2 pixels',
            file=facts.sample.mask,
            value=f'{facts.mask.width} x {facts.mask.height}',
        )


_MUST_BE = {
    'not finite': 'be finite',
    'negative': 'be at least 0 (0 is invalid)',
    'not unit': 'have length 1 or be (0, 0, 0), which is invalid',
    'out of range': 'be in [0, 1]',
}


def _bad_values(name: str, field: str) -> Callable:
    """A rule for values that the reader has found to be wrong."""

    def check(facts: SampleFacts, expected: Expectations) -> Findings:
        array = getattr(facts, field)
        for kind, count, first in array.bad if array is not None else ():
            yield new_finding(
                f'values of the {name} must {_MUST_BE[kind]}',
                file=getattr(facts.sample, field),
                pixel=divmod(first, array.width),
                value=kind,
                count=count,
            )

    return check


@MTL.rule(
    'MTL002',
    title='depth or normals have another size than the image',
    remedy='find the file that belongs to the image, or resize the one that '
    'was resized back: depth by nearest neighbour, normals to length 1 again',
    needs='image',
)
def _other_size(facts: SampleFacts, expected: Expectations) -> Findings:
    image, sample = facts.image, facts.sample
    for name, array, path in (
        ('depth', facts.depth, sample.depth),
        ('normals', facts.normal, sample.normal),
    ):
        if not has_size(image) or array is None or array.error:
            continue
        own, wanted = (f'{x.width} x {x.height}' for x in (array, image))
        if own != wanted:
            yield new_finding(
                f'image and {name} must have the same size, got {wanted} and '
                f'{own}',
                file=path,
                value=own,
            )


MTL_VALUES.rule(
    'MTL003',
    title='picture with values outside of [0, 1]',
    remedy='store pictures of this layout as floating-point numbers in '
    '[0, 1]; divide those in [0, 255] by 255',
    needs='image',
)(_bad_values('picture', 'image'))


MTL_VALUES.rule(
    'MTL004',
    title='depth that is negative or not finite',
    remedy='write 0, which is invalid, where the depth is not known',
    needs='depth',
)(_bad_values('depth', 'depth'))


MTL_VALUES.rule(
    'MTL005',
    title='normals that are no unit vectors',
    remedy='divide normals by their length, and write (0, 0, 0) where they '
    'are not known; interpolation makes them shorter',
    needs='normal',
)(_bad_values('normals', 'normal'))
