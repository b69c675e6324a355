"""Rules for values that are ignored, or that label maps are filled with.

What the loss ignores is what all others must ignore and fill with. What comes
of another value depends on the place, and on what the label maps hold.
"""

from collections.abc import Iterator, Sequence

from ....utils.label_spec import IgnorePlace
from ...findings import Severity, new_finding
from ..expectations import Expectations, loaded_values
from ..totals import SplitTotals
from .classes import likeness
from .registry import CFG, Findings

_Totals = Sequence[SplitTotals]
_Expected = Sequence[Expectations]

# Classes that what lies beside a picture may be meant to belong to.
_BACKGROUND = (
    'background',
    'bg',
    'other',
    'others',
    'unlabeled',
    'unlabelled',
)
# What sizes of images are rounded down to.
_SIZE_STEP = 64


def _is_class(value: int, wanted: Expectations) -> bool:
    return 0 <= value < wanted.num_classes


def _meaning(value: int, wanted: Expectations) -> str:
    if not _is_class(value, wanted):
        return str(value)
    name = f' ({wanted.classes[value]})' if value < len(wanted.classes) else ''
    return f'{value}, which is a class{name}'


def _places(
    totals: _Totals, expected: _Expected
) -> Iterator[tuple[IgnorePlace, Expectations]]:
    """Places with another value than the loss ignores, each once."""
    if totals and not any(own.num_masks for own in totals):
        return  # Such as pictures with depth alone.
    seen = set()
    for wanted in expected:
        if wanted.task != 'semantic':
            continue
        places = {
            ignore_place.place: ignore_place
            for ignore_place in wanted.ignore_places
        }
        for head in wanted.heads:
            place = f'{head.place}.ignore_index'
            own = [
                any(name.startswith(f'{loss}.ignore') for name in places)
                for loss, _ in head.losses
            ]
            if head.ignore_index is not None and not (own and all(own)):
                default = IgnorePlace(place=place, value=head.ignore_index)
                places.setdefault(place, default)
        for place, ignore_place in places.items():
            if ignore_place.value != wanted.ignore_index and place not in seen:
                seen.add(place)
                yield ignore_place, wanted


def _occurs(
    value: int, totals: _Totals, expected: _Expected, split: str
) -> bool | None:
    """Whether loaded label maps hold a value; None if that is not known."""
    known = None
    for own, wanted in zip(totals, expected):
        if own.num_masks and wanted.split.startswith(split):
            table = loaded_values(wanted)
            if any(table.loaded(stored) == value for stored in own.pixels):
                return True
            known = False
    return known


def _difference(ignored: IgnorePlace, wanted: Expectations) -> str:
    default = '' if ignored.said else ' by default'
    return (
        f'{ignored.place} must be {wanted.ignore_index}, the value that the '
        f'loss ignores, got {_meaning(ignored.value, wanted)}{default}'
    )


def _remedy(ignored: IgnorePlace, wanted: Expectations) -> str:
    """For a place of which the rule's own remedy says too little."""
    if ignored.said:
        return ''
    key = ignored.place.rpartition('.')[2]
    value = str(wanted.ignore_index)
    if key == 'pad_val':
        value = f'dict(img=0, seg={value})'
    return (
        f'set {key}={value} of {ignored.kind}, as the config does not say it'
    )


def _filled(
    ignored: IgnorePlace, wanted: Expectations
) -> tuple[str, Severity]:
    """What comes of a place that fills with a value that is not ignored."""
    text = 'the loss fails at what it fills, or trains it as another class'
    if _is_class(ignored.value, wanted):
        text = 'what it fills is trained as this class'
    names = wanted.classes[ignored.value : ignored.value + 1]
    if ignored.value >= 0 and any(likeness(n) in _BACKGROUND for n in names):
        return text, Severity.WARNING
    return text, Severity.ERROR


_LOSS = 'fails at them, or trains them as another class'
_METRIC = (
    'counts them as errors: each adds to the union of the class that is '
    'predicted there, and IoU is too low'
)


def _ignored(
    item: IgnorePlace,
    wanted: Expectations,
    occurs: bool | None,
) -> tuple[str, Severity] | None:
    """What comes of a place that does not ignore what the loss ignores."""
    ignored = wanted.ignore_index
    if item.role == 'look':
        text = f'it takes pixels of {ignored} for those of a class'
        matters = item.said if occurs is None else occurs
        return (text, Severity.WARNING) if matters else None
    harm = _METRIC if item.role == 'metric' else _LOSS
    if occurs:
        text = f'label maps hold {ignored} when they are loaded, and it {harm}'
        return text, Severity.ERROR
    if occurs is None:
        text = f'if label maps hold {ignored} when they are loaded, it {harm}'
        return text, Severity.ERROR if item.said else Severity.WARNING
    if _is_class(item.value, wanted):
        return 'it leaves this class out', Severity.WARNING
    return None


@CFG.rule(
    'CFG001',
    title='places of the config disagree on the value to ignore',
    severity=Severity.ERROR,
    remedy='set the same value in the heads, in losses, in transforms that '
    'fill or ignore, and in the metric',
    in_preflight=True,
)
def _one_ignored_value(totals: _Totals, expected: _Expected) -> Findings:
    filled = {
        ignore_place.value
        for wanted in expected
        for ignore_place in wanted.ignore_places
        if ignore_place.role == 'fill'
    }
    for ignore_place, wanted in _places(totals, expected):
        if ignore_place.role == 'pad':
            continue
        if ignore_place.role == 'fill':
            outcome = _filled(ignore_place, wanted)
        else:
            # A test split that is not looked at is like that of validation.
            split = 'val' if ignore_place.role == 'metric' else 'train'
            if ignore_place.place.startswith('test_') and totals:
                own = _occurs(wanted.ignore_index, totals, expected, 'test')
                split = 'val' if own is None else 'test'
            occurs = _occurs(wanted.ignore_index, totals, expected, split)
            if ignore_place.role == 'loss' and wanted.ignore_index in filled:
                occurs = True
            outcome = _ignored(ignore_place, wanted, occurs)
        if outcome is None:
            continue
        text, severity = outcome
        yield new_finding(
            f'{_difference(ignore_place, wanted)}; {text}',
            severity=severity,
            remedy=_remedy(ignore_place, wanted),
            key=ignore_place.place,
            value=str(ignore_place.value),
        )


def _is_padded(
    ignored: IgnorePlace, totals: _Totals, expected: _Expected
) -> bool | None:
    """Whether an image is too small; None if that is not known."""
    if ignored.pads != 'stored':
        return True if ignored.pads == 'always' else None
    sizes = [
        tuple(map(int, reversed(text.split('x'))))
        for own, wanted in zip(totals, expected)
        if wanted.split.startswith('train')
        for text in own.sizes
    ]
    missing = [
        wanted - side
        for sides in sizes
        for side, wanted in zip(sides, ignored.size)
    ]
    if not missing or 0 < max(missing) < _SIZE_STEP:
        return None
    return max(missing) > 0


@CFG.rule(
    'CFG004',
    title='padding of label maps is not ignored',
    severity=Severity.ERROR,
    remedy='set seg_pad_val of the data preprocessor, and seg in pad_val of '
    'Pad, to the ignore_index of the heads',
    in_preflight=True,
)
def _padding(totals: _Totals, expected: _Expected) -> Findings:
    """What smaller images are padded with, against the ignored value.

    A warning where it is not known whether an image is smaller.
    """
    for item, wanted in _places(totals, expected):
        if item.role != 'pad':
            continue
        padded = _is_padded(item, totals, expected)
        if padded is False:
            continue
        where = (
            'images are smaller than what they are padded to'
            if padded
            else 'where an image is smaller than what it is padded to'
        )
        text, severity = _filled(item, wanted)
        yield new_finding(
            f'{_difference(item, wanted)}; {where}'
            f'{", and" if padded else ","} {text}',
            severity=severity if padded else Severity.WARNING,
            remedy=_remedy(item, wanted),
            key=item.place,
            value=str(item.value),
        )


@CFG.rule(
    'CFG005',
    title='the ignored value is a class',
    severity=Severity.WARNING,
    remedy='the class is not trained: take it out of the classes, or, if it '
    'is to be learned, set ignore_index=255 of the heads',
    in_preflight=True,
)
def _ignored_class(totals: _Totals, expected: _Expected) -> Findings:
    seen = set()
    for wanted in expected:
        value = wanted.ignore_index
        if value is None or wanted.task != 'semantic':
            continue
        text = f'ignore_index is {_meaning(value, wanted)}'
        if _is_class(value, wanted) and text not in seen:
            seen.add(text)
            yield new_finding(text, key='ignore_index', value=str(value))
