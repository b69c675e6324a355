"""Rules for the config alone, and for it beside the values of the masks."""

from collections import Counter
from collections.abc import Iterator, Sequence

from ...findings import Finding, Severity, found
from ..expectations import Expectations, HeadFacts
from ..loaded import loaded_values
from ..totals import SplitTotals
from .registry import CFG

__all__: list[str] = []

_PAD = 'seg_pad_val'
_Totals = Sequence[SplitTotals]
_Expected = Sequence[Expectations]


def _once(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Splits share a model: what is wrong with it is said once."""
    seen = set()
    for finding in findings:
        key = finding.key, finding.message
        if key not in seen:
            seen.add(key)
            yield finding


def _heads(expected: _Expected) -> Iterator[tuple[HeadFacts, Expectations]]:
    for wanted in expected:
        for head in wanted.heads:
            yield head, wanted


def _meaning(value: int, wanted: Expectations) -> str:
    if 0 <= value < wanted.num_classes:
        name = ''
        if value < len(wanted.classes):
            name = f' ({wanted.classes[value]})'
        return f'{value}, which is a class{name}'
    return str(value)


def _other_ignored(wanted: Expectations) -> Iterator[tuple[str, int | None]]:
    """Places with another value than the loss ignores."""
    places = dict(wanted.ignore_places)
    for head in wanted.heads:
        place = f'{head.place}.ignore_index'
        if place not in places and head.ignore_index is not None:
            places[place] = head.ignore_index
    for place, value in places.items():
        # Of the data preprocessor, it is the matter of CFG004.
        pads = place == f'model.data_preprocessor.{_PAD}'
        if value != wanted.ignore_index and not pads:
            yield place, value


@CFG.rule(
    'CFG001',
    title='places of the config disagree on the value to ignore',
    severity=Severity.ERROR,
    remedy='set the same value in the heads, in losses, in transforms that '
    'fill or ignore, and in the metric',
    in_preflight=True,
)
def one_ignored_value(
    totals: _Totals, expected: _Expected
) -> Iterator[Finding]:
    """Places that ignore, or fill with, another value than the loss."""

    def places() -> Iterator[Finding]:
        for wanted in expected:
            if wanted.task != 'semantic':
                continue
            for place, value in _other_ignored(wanted):
                yield found(
                    f'{place} must be {wanted.ignore_index}, the value that '
                    f'the loss ignores, got {_meaning(value, wanted)}',
                    key=place,
                    value=str(value),
                )

    yield from _once(places())


@CFG.rule(
    'CFG002',
    title='class_weight has another length than the classes',
    severity=Severity.ERROR,
    remedy='give one weight for each class, in the order of the classes '
    '(detectors with softmax: one more for the background)',
    in_preflight=True,
)
def weight_length(totals: _Totals, expected: _Expected) -> Iterator[Finding]:
    """Lengths of weights against num_classes of their head."""

    def places() -> Iterator[Finding]:
        for head, wanted in _heads(expected):
            count = head.num_classes or wanted.num_classes
            allowed = [count]
            if wanted.task != 'semantic':
                allowed.append(count + 1)
            for place, length in head.class_weights:
                if count and length not in allowed:
                    yield found(
                        f'{place}.class_weight must have '
                        f'{" or ".join(map(str, allowed))} numbers '
                        f'(num_classes={count}), got {length}',
                        key=place,
                        value=str(length),
                    )

    yield from _once(places())


def _kind(wanted: Expectations) -> str:
    return 'thing classes' if wanted.thing_classes else 'classes'


@CFG.rule(
    'CFG003',
    title='num_classes is not the number of classes of the data',
    severity=Severity.ERROR,
    remedy='set num_classes of the heads to the number of '
    'metainfo.classes of the data set',
)
def class_count(totals: _Totals, expected: _Expected) -> Iterator[Finding]:
    """Heads, or what was asked for, against names of classes."""
    trained = {
        wanted.thing_classes or wanted.classes
        for wanted in expected
        if wanted.split.startswith('train')
    }

    def places() -> Iterator[Finding]:
        for wanted in expected:
            if not wanted.classes:
                continue
            if wanted.thing_classes and not wanted.heads:
                continue
            counts = {
                f'{head.place}.num_classes': head.num_classes
                for head in wanted.heads
            } or {'num_classes': wanted.num_classes}
            # Boxes and masks of panoptic labels are of things alone.
            classes = wanted.thing_classes or wanted.classes
            evaluated = not wanted.split.startswith('train')
            for place, count in counts.items():
                if evaluated and classes[:count] in trained:
                    # The others are not asked for, as in MOT17's.
                    continue
                if count and count != len(classes):
                    yield found(
                        f'{place} must be {len(classes)}, the number '
                        f'of {_kind(wanted)} of the data, got {count}',
                        key=place,
                        value=str(count),
                    )

    yield from _once(places())


@CFG.rule(
    'CFG004',
    title='padding of label maps is not ignored',
    severity=Severity.ERROR,
    remedy='set seg_pad_val of the data preprocessor to the ignore_index of '
    'the heads',
    in_preflight=True,
)
def padding(totals: _Totals, expected: _Expected) -> Iterator[Finding]:
    """What the data preprocessor pads with against the ignored value."""

    def places() -> Iterator[Finding]:
        for wanted in expected:
            value = wanted.seg_pad_val
            if (
                wanted.task == 'semantic'
                and value is not None
                and value != wanted.ignore_index
            ):
                yield found(
                    f'{_PAD} must be {wanted.ignore_index}, the value that '
                    f'the loss ignores, got {_meaning(value, wanted)}',
                    key=f'model.data_preprocessor.{_PAD}',
                    value=str(value),
                )

    yield from _once(places())


@CFG.rule(
    'CFG005',
    title='the ignored value is a class',
    severity=Severity.WARNING,
    remedy='the class is not trained; if this is not meant, set '
    'ignore_index=255 of the heads',
    in_preflight=True,
)
def ignored_class(totals: _Totals, expected: _Expected) -> Iterator[Finding]:
    """ignore_index inside of the range of classes."""

    def places() -> Iterator[Finding]:
        for wanted in expected:
            value = wanted.ignore_index
            if value is None or wanted.task != 'semantic':
                continue
            if 0 <= value < wanted.num_classes:
                yield found(
                    f'ignore_index is {_meaning(value, wanted)}',
                    key='ignore_index',
                    value=str(value),
                )

    yield from _once(places())


@CFG.rule(
    'CFG006',
    title='reduce_zero_label ignores a class',
    severity=Severity.ERROR,
    remedy='set reduce_zero_label=False of data set and LoadAnnotations: '
    'value 0 of the masks is the first class',
    scope='split',
    subject='split',
    unit='pixel',
)
def reduced_class(
    totals: SplitTotals, expected: Expectations
) -> Iterator[Finding]:
    """Masks hold 0 to C - 1, each of them, and C never."""
    count = expected.num_classes
    if not expected.reduce_zero_label or expected.label_map or count < 2:
        return
    kinds = loaded_values(expected).kind
    stored = {
        value
        for value in totals.pixels
        if value and value < len(kinds) and kinds[value] == 'class'
    }
    if 0 in totals.pixels and stored == set(range(1, count)):
        yield found(
            f'the masks hold each of 0 to {count - 1} and never {count}; '
            f'reduce_zero_label ignores 0, and class {count - 1} has no '
            f'pixels (num_classes={count})',
            value='0',
            count=totals.pixels[0],
        )


@CFG.rule(
    'CFG007',
    title='class named twice',
    severity=Severity.ERROR,
    remedy='give each class of metainfo.classes a name of its own',
    subject='class',
    in_preflight=True,
)
def named_twice(totals: _Totals, expected: _Expected) -> Iterator[Finding]:
    """Names that occur more than once."""

    def names() -> Iterator[Finding]:
        for wanted in expected:
            for name, count in Counter(wanted.classes).items():
                if count > 1:
                    yield found(
                        f'class {name!r} is {count} times in the classes',
                        key='metainfo.classes',
                        value=name,
                    )

    yield from _once(names())


@CFG.rule(
    'CFG008',
    title='splits have different classes or loaders',
    severity=Severity.ERROR,
    remedy='give all splits the same metainfo.classes in the same order, and '
    'the same reduce_zero_label',
    subject='split',
)
def splits_differ(totals: _Totals, expected: _Expected) -> Iterator[Finding]:
    """Other classes, another order or another reduction than the first.

    Where one has the first classes of the other, labels mean the same.
    """
    for wanted in expected[1:]:
        first = expected[0]
        for field in ('classes', 'reduce_zero_label'):
            own, other = getattr(wanted, field), getattr(first, field)
            if field == 'classes':
                if wanted.classes_are_texts:
                    continue
                shorter = min(len(own), len(other))
                own, other = own[:shorter], other[:shorter]
            elif wanted.task != first.task:
                continue
            if own == other:
                continue
            yield found(
                f'{field} of {wanted.split} must be that of {first.split}, '
                f'{_short(other)}, got {_short(own)}',
                split=wanted.split,
                key=f'{wanted.split}_dataloader.dataset',
                value=field,
            )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else f'{text[:117]}...'
