"""Rules for the values of label maps, after what the loader does to them.

A value that is wrong is found by one rule, the one that knows most about it.
"""

from collections.abc import Callable, Iterator

from ...findings import Severity, found
from ..expectations import Expectations
from ..facts import MaskFacts, SampleFacts
from ..loaded import holds_indices, loaded_values
from ..totals import SplitTotals
from .registry import SEG_VALUES, Findings

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


def _allowed(expected: Expectations) -> str:
    return (
        f'labels must be in [0, {expected.num_classes - 1}] '
        f'(num_classes={expected.num_classes}, '
        f'ignore_index={expected.ignore_index})'
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
            yield found(
                f'{what} out of range; {_allowed(expected)}',
                file=facts.sample.mask,
                pixel=pixel,
                value=str(value),
                count=count,
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
    title='label out of range',
    severity=Severity.ERROR,
    remedy='compare num_classes of the head with the classes of the data '
    'set, and with what its label_map and reduce_zero_label make of masks',
    per_value=True,
    blocks_training=True,
)(_out_of_range('bad'))


@SEG_VALUES.rule(
    'SEG002',
    title='value beyond 8 bits, which the loader wraps to another',
    severity=Severity.ERROR,
    remedy='LoadAnnotations casts masks to uint8, so that 256 becomes 0; '
    'write masks of 8 bits that hold class indices, such as the class of '
    'each instance id (26001 of Cityscapes is class id 26)',
    blocks_training=True,
    fix='write the ignored value in place of 65535 or -1',
    fixed_in=('mask',),
)
def _wraps(facts: SampleFacts, expected: Expectations) -> Findings:
    wrong = list(_wrong(facts, expected, 'wraps'))
    if wrong:
        value, _, pixel = wrong[0]
        loaded = loaded_values(expected).value[value % 256]
        yield found(
            f'{len(wrong)} values are not in [0, 255], and the loader wraps '
            f'them: {value} becomes {loaded}',
            file=facts.sample.mask,
            pixel=pixel,
            value=str(value),
            count=sum(count for _, count, _ in wrong),
        )


@SEG_VALUES.rule(
    'SEG003',
    title='value that the label_map does not have',
    severity=Severity.ERROR,
    remedy='the loader leaves such values as they are; make the label_map '
    '(from metainfo.classes of the data set) cover all values of the masks, '
    'or correct the masks',
    per_value=True,
    blocks_training=True,
)
def _unmapped(facts: SampleFacts, expected: Expectations) -> Findings:
    for value, count, pixel in _wrong(facts, expected, 'unmapped'):
        loaded = loaded_values(expected).value[value]
        yield found(
            f'value {value} is not in the label_map and stays {loaded}; '
            f'{_allowed(expected)}',
            file=facts.sample.mask,
            pixel=pixel,
            value=str(value),
            count=count,
        )


SEG_VALUES.rule(
    'SEG004',
    title='255 is not what the loss ignores',
    severity=Severity.ERROR,
    remedy='255 is what masks, padding (seg_pad_val of the data '
    'preprocessor) and reduce_zero_label mark as "to be ignored"; set '
    'ignore_index=255 of the heads, or let masks and seg_pad_val hold the '
    'value that they ignore',
    per_value=True,
    blocks_training=True,
    fix='write the ignored value in place of 255, if all others are fine',
    fixed_in=('mask',),
)(_out_of_range('void', black_and_white=False))


SEG_VALUES.rule(
    'SEG005',
    title='black and white mask, 0 and 255',
    severity=Severity.ERROR,
    remedy='save the masks with 1 in place of 255, or map 255 to 1 by the '
    'label_map of the data set',
    blocks_training=True,
)(_out_of_range('void', black_and_white=True))


SEG_VALUES.rule(
    'SEG006',
    title='254, an ignored 255 reduced by one',
    severity=Severity.ERROR,
    remedy='reduce_zero_label, or a converter that did the same, has turned '
    '255 into 254; write the masks with 255 again, or set '
    'reduce_zero_label=False if they were reduced already',
    per_value=True,
    blocks_training=True,
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
        yield found(
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
    fix='write the ignored value in place of the void',
    fixed_in=('mask',),
)
def _wide_void(facts: SampleFacts, expected: Expectations) -> Findings:
    for value, count, pixel in _wrong(facts, expected, 'wide_void'):
        yield found(
            f'{value} wraps to {value % 256}, which is ignored',
            file=facts.sample.mask,
            pixel=pixel,
            value=str(value),
            count=count,
        )


@SEG_VALUES.rule(
    'SEG009',
    title='black and white masks of which the white is ignored',
    severity=Severity.ERROR,
    remedy='the second class has no pixel, so nothing is learned; save the '
    'masks with 1 in place of 255',
    scope='split',
    needs='',
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
        and _as_stored(totals, expected)
    ):
        yield found(
            'all masks hold 0 and 255 only, and 255 is ignored '
            '(num_classes=2, ignore_index=255)',
            value='255',
            count=totals.pixels[255],
        )


def _as_stored(totals: SplitTotals, expected: Expectations) -> bool:
    return all(
        holds_indices(MaskFacts(mode=mode), expected) for mode in totals.modes
    )
