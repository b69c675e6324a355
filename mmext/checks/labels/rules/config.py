"""Rules for the config alone, and for it beside the values of the masks.

What the loss ignores is what all others must ignore and fill with. What comes
of another value depends on the location, and on what the label maps hold.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from ....utils.label_spec import HeadSpec, IgnoreLocation
from ...findings import Finding, Severity, new_finding
from ..expectations import Expectations, loaded_values
from ..totals import SIZE_STEP, SplitTotals
from .classes import likeness, written_like
from .registry import CFG, Expected, Findings, Totals

# Classes that what lies beside a picture may be meant to belong to.
_BACKGROUND = (
    'background',
    'bg',
    'other',
    'others',
    'unlabeled',
    'unlabelled',
)


def _once(check: Callable) -> Callable:
    """Splits share a model: what is wrong with it is said once."""

    @functools.wraps(check)
    def findings(totals: Totals, expected: Expected) -> Findings:
        seen = set()
        for finding in check(totals, expected):
            key = finding.key, finding.message
            if key not in seen:
                seen.add(key)
                yield finding

    return findings


def _is_class(value: int, wanted: Expectations) -> bool:
    return 0 <= value < wanted.num_classes


def _meaning(value: int, wanted: Expectations) -> str:
    if not _is_class(value, wanted):
        return str(value)
    name = f' ({wanted.classes[value]})' if value < len(wanted.classes) else ''
    return f'{value}, which is a class{name}'


def _locations(
    totals: Totals, expected: Expected
) -> Iterator[tuple[IgnoreLocation, Expectations]]:
    """Locations with another value than the loss ignores, each once."""
    if totals and not any(own.num_masks for own in totals):
        return  # Such as pictures with depth alone.
    seen = set()
    for wanted in expected:
        if wanted.task != 'semantic':
            continue
        locations = {item.location: item for item in wanted.ignore_locations}
        for head in wanted.heads:
            location = f'{head.location}.ignore_index'
            own = [
                any(name.startswith(f'{loss}.ignore') for name in locations)
                for loss, _ in head.losses
            ]
            if head.ignore_index is not None and not (own and all(own)):
                default = IgnoreLocation(
                    location=location, value=head.ignore_index
                )
                locations.setdefault(location, default)
        for location, item in locations.items():
            if item.value != wanted.ignore_index and location not in seen:
                seen.add(location)
                yield item, wanted


def _occurs(
    value: int, totals: Totals, expected: Expected, split: str
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


def _difference(
    item: IgnoreLocation, wanted: Expectations, text: str, severity: Severity
) -> Finding:
    """A location whose value is not the ignored one, and what comes of it."""
    default = remedy = ''
    if not item.said:
        # The remedy of the rule says too little.
        default, key = ' by default', item.location.rpartition('.')[2]
        value = str(wanted.ignore_index)
        if key == 'pad_val':
            value = f'dict(img=0, seg={value})'
        remedy = (
            f'set {key}={value} of {item.kind}, as the config does not say it'
        )
    return new_finding(
        f'{item.location} must be {wanted.ignore_index}, the value that '
        f'the loss ignores, got {_meaning(item.value, wanted)}{default}; '
        f'{text}',
        severity=severity,
        remedy=remedy,
        key=item.location,
        value=str(item.value),
    )


def _filled(
    ignored: IgnoreLocation, wanted: Expectations
) -> tuple[str, Severity]:
    """What comes of a location that fills with a value that is not ignored."""
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
    item: IgnoreLocation,
    wanted: Expectations,
    occurs: bool | None,
) -> tuple[str, Severity] | None:
    """What comes of a location that does not ignore what the loss ignores."""
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
    title='locations of the config disagree on the value to ignore',
    remedy='set the same value in the heads, in losses, in transforms that '
    'fill or ignore, and in the metric',
    in_preflight=True,
)
def _one_ignored_value(totals: Totals, expected: Expected) -> Findings:
    filled = {
        item.value
        for wanted in expected
        for item in wanted.ignore_locations
        if item.role == 'fill'
    }
    for item, wanted in _locations(totals, expected):
        if item.role == 'pad':
            continue
        if item.role == 'fill':
            outcome = _filled(item, wanted)
        else:
            # A test split that is not looked at is like that of validation.
            split = 'val' if item.role == 'metric' else 'train'
            if item.location.startswith('test_') and totals:
                own = _occurs(wanted.ignore_index, totals, expected, 'test')
                split = 'val' if own is None else 'test'
            occurs = _occurs(wanted.ignore_index, totals, expected, split)
            if item.role == 'loss' and wanted.ignore_index in filled:
                occurs = True
            outcome = _ignored(item, wanted, occurs)
        if outcome is not None:
            text, severity = outcome
            yield _difference(item, wanted, text, severity)


def _is_padded(
    ignored: IgnoreLocation, totals: Totals, expected: Expected
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
    if not missing or 0 < max(missing) < SIZE_STEP:
        return None
    return max(missing) > 0


@CFG.rule(
    'CFG004',
    title='padding of label maps is not ignored',
    remedy='set seg_pad_val of the data preprocessor, and seg in pad_val of '
    'Pad, to the ignore_index of the heads',
    in_preflight=True,
)
def _padding(totals: Totals, expected: Expected) -> Findings:
    """What smaller images are padded with, against the ignored value.

    A warning where it is not known whether an image is smaller.
    """
    for item, wanted in _locations(totals, expected):
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
        yield _difference(
            item,
            wanted,
            f'{where}{", and" if padded else ","} {text}',
            severity if padded else Severity.WARNING,
        )


@CFG.rule(
    'CFG005',
    title='the ignored value is a class',
    severity=Severity.WARNING,
    remedy='the class is not trained: take it out of the classes, or, if it '
    'is to be learned, set ignore_index=255 of the heads',
    in_preflight=True,
)
@_once
def _ignored_class(totals: Totals, expected: Expected) -> Findings:
    for wanted in expected:
        value = wanted.ignore_index
        if value is None or wanted.task != 'semantic':
            continue
        if _is_class(value, wanted):
            text = f'ignore_index is {_meaning(value, wanted)}'
            yield new_finding(text, key='ignore_index', value=str(value))


def _heads(expected: Expected) -> Iterator[tuple[HeadSpec, Expectations]]:
    for wanted in expected:
        for head in wanted.heads:
            yield head, wanted


@CFG.rule(
    'CFG002',
    title='class_weight has another length than the classes',
    remedy='give one weight for each class, in the order of the classes '
    '(detectors with softmax: one more for the background)',
    in_preflight=True,
)
@_once
def weight_length(totals: Totals, expected: Expected) -> Findings:
    """Lengths of weights against num_classes of their head."""
    for head, wanted in _heads(expected):
        count = head.num_classes or wanted.num_classes
        if head.of_masks or not count:
            continue
        allowed = [count]
        if wanted.task != 'semantic':
            allowed.append(count + 1)
        for location, weights in head.class_weights:
            if len(weights) not in allowed:
                yield new_finding(
                    f'{location}.class_weight must have '
                    f'{" or ".join(map(str, allowed))} numbers '
                    f'(num_classes={count}), got {len(weights)}',
                    key=location,
                    value=str(len(weights)),
                )


@CFG.rule(
    'CFG003',
    symptoms=('does not matches the length of `classes`',),
    title='num_classes is not the number of classes of the data',
    remedy='set num_classes of the heads to the number of '
    'metainfo.classes of the data set',
)
@_once
def class_count(totals: Totals, expected: Expected) -> Findings:
    """Heads, or what was asked for, against names of classes."""
    trained = {
        wanted.thing_classes or wanted.classes
        for wanted in expected
        if wanted.split.startswith('train')
    }
    for wanted in expected:
        things = wanted.thing_classes
        if not wanted.classes or (things and not wanted.heads):
            continue
        counts = {
            f'{head.location}.num_classes': head.num_classes
            for head in wanted.heads
        } or {'num_classes': wanted.num_classes}
        # Boxes and masks of panoptic labels are of things alone.
        classes = things or wanted.classes
        for location, count in counts.items():
            if (
                not wanted.split.startswith('train')
                and classes[:count] in trained
            ):
                # The others are not asked for, as in MOT17's.
                continue
            if count and count != len(classes):
                kind = 'thing classes' if things else 'classes'
                yield new_finding(
                    f'{location} must be {len(classes)}, the number of {kind} '
                    f'of the data, got {count}',
                    key=location,
                    value=str(count),
                )


@CFG.rule(
    'CFG006',
    title='reduce_zero_label ignores a class',
    remedy='set reduce_zero_label=False of data set and LoadAnnotations: '
    'value 0 of the masks is the first class',
    scope='split',
    subject='split',
    unit='pixel',
)
def reduced_class(totals: SplitTotals, expected: Expectations) -> Findings:
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
        yield new_finding(
            f'the masks hold each of 0 to {count - 1} and never {count}; '
            f'reduce_zero_label ignores 0, and class {count - 1} has no '
            f'pixels (num_classes={count})',
            value='0',
            count=totals.pixels[0],
        )


@CFG.rule(
    'CFG007',
    title='class named twice',
    remedy='give each class of metainfo.classes a name of its own',
    subject='class',
    in_preflight=True,
)
@_once
def named_twice(totals: Totals, expected: Expected) -> Findings:
    """Names that occur more than once."""
    for wanted in expected:
        for name, count in Counter(wanted.classes).items():
            if count > 1:
                yield new_finding(
                    f'class {name!r} is {count} times in the classes',
                    key='metainfo.classes',
                    value=name,
                )


@CFG.rule(
    'CFG010',
    title='classes whose names differ only in case, blanks or hyphens',
    severity=Severity.WARNING,
    remedy='if both are the same class, give it one name in the annotations '
    'and once in metainfo.classes; loaders compare letter by letter',
    subject='class',
    in_preflight=True,
)
@_once
def _alike(totals: Totals, expected: Expected) -> Findings:
    for wanted in expected:
        for index, name in enumerate(wanted.classes):
            other = written_like(name, wanted.classes[:index])
            if other:
                yield new_finding(
                    f'classes {other!r} and {name!r} are two to the training',
                    key='metainfo.classes',
                    value=name,
                )


@CFG.rule(
    'CFG008',
    title='splits have different classes or loaders',
    remedy='give all splits the same metainfo.classes in the same order, and '
    'the same reduce_zero_label',
    subject='split',
)
def splits_differ(totals: Totals, expected: Expected) -> Findings:
    """Other classes, another order or another reduction than the first.

    Where one has the first classes of the other, labels mean the same.
    """
    first = expected[0] if expected else None
    for wanted in expected[1:]:
        differing = {}
        if not wanted.classes_are_texts:
            shorter = min(len(wanted.classes), len(first.classes))
            differing['classes'] = (
                wanted.classes[:shorter],
                first.classes[:shorter],
            )
        # CFG009 says so of a split that disagrees with itself.
        if wanted.task == first.task and not (
            _disagree(wanted) or _disagree(first)
        ):
            differing['reduce_zero_label'] = (
                wanted.reduce_zero_label,
                first.reduce_zero_label,
            )
        for field, (own, other) in differing.items():
            if own != other:
                yield new_finding(
                    f'{field} of {wanted.split} must be that of '
                    f'{first.split}, {_short(other)}, got {_short(own)}',
                    split=wanted.split,
                    key=f'{wanted.split}_dataloader.dataset',
                    value=field,
                )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else f'{text[:117]}...'


@CFG.rule(
    'CFG009',
    title='data set and LoadAnnotations disagree on reduce_zero_label',
    remedy='set reduce_zero_label of the data set alone, and take it out of '
    'LoadAnnotations, which then has that of the data set',
    subject='split',
    in_preflight=True,
)
def reduced_by_one(totals: Totals, expected: Expected) -> Findings:
    """MMSegmentation's LoadAnnotations asserts that both are the same."""
    for number, wanted in enumerate(expected):
        if not _disagree(wanted):
            continue
        own, loader = wanted.dataset_reduces, wanted.reduce_zero_label
        pixels = totals[number].pixels if totals else {}
        fits = {
            reduces: loaded_values(
                msgspec.structs.replace(wanted, reduce_zero_label=reduces)
            ).fine.issuperset(pixels)
            for reduces in (False, True)
        }
        right = own if fits[own] else loader
        yield new_finding(
            f'LoadAnnotations has reduce_zero_label={loader}, its data '
            f'set {own}; loading the first label map fails with an '
            'AssertionError',
            remedy=f'set reduce_zero_label={right} of the data set, which '
            'fits the values of the label maps, and take it out of '
            'LoadAnnotations'
            if fits[own] != fits[loader]
            else '',
            split=wanted.split,
            key=f'{wanted.split.partition("[")[0]}_dataloader.dataset',
            value=str(loader),
        )


def _disagree(wanted: Expectations) -> bool:
    return wanted.dataset_reduces not in (None, wanted.reduce_zero_label)


@CFG.rule(
    'CFG011',
    title='class_weight with a number that cannot weigh',
    remedy='give each class a finite number of 0 or more, one of them above '
    '0 (tools/validate_labels.py --class-weights prints some)',
    in_preflight=True,
)
@_once
def weight_values(totals: Totals, expected: Expected) -> Findings:
    """NaN, infinity, numbers below 0, words, nothing but 0, or no file."""
    for head, wanted in _heads(expected):
        for location, path in head.weight_files:
            if '://' not in path and not Path(path).is_file():
                yield new_finding(
                    f'{location}.class_weight must be numbers or an existing '
                    f'file, got {path!r}',
                    remedy='correct the path, or write the file',
                    key=location,
                    value=path,
                )
        for location, weights in head.class_weights:
            for index, weight in enumerate(weights):
                problem = _why_no_weight(weight)
                if problem:
                    name = ''.join(wanted.classes[index : index + 1])
                    yield new_finding(
                        f'{location}.class_weight[{index}]'
                        f'{name and f" ({name})"} is {weight!r}: {problem}',
                        key=location,
                        value=str(weight),
                    )
            if weights and not any(weights):
                yield new_finding(
                    f'{location}.class_weight has nothing but 0: the loss is '
                    '0 and nothing is learned',
                    key=location,
                    value='0',
                )


def _why_no_weight(weight: object) -> str:
    if not isinstance(weight, int | float):
        return 'it is no number'
    if math.isnan(weight) or math.isinf(weight):
        return 'the loss becomes NaN or infinite with the first such label'
    if weight < 0:
        return 'the loss is lowered by getting the class wrong'
    return ''


# Share of the images of which it is likely that more were meant to be left.
_FEW = 0.1


@CFG.rule(
    'CFG012',
    title='images or boxes that filter_cfg leaves out of the training',
    severity=Severity.INFO,
    remedy='nothing, if this is as it should be; else annotate the images, '
    'or change filter_empty_gt, min_size or bbox_min_size of filter_cfg',
    scope='split',
    subject='split',
    per_value=True,
)
def left_out(totals: SplitTotals, expected: Expectations) -> Findings:
    """How many images and boxes filter_cfg leaves, of how many."""
    number, small = sum(totals.left_out.values()), totals.num_small
    if totals.is_misread or not (number or small):
        return
    rest = totals.num_samples - number
    reasons = ', '.join(
        f'{count:,} {reason}'
        for reason, count in sorted(totals.left_out.items())
    )
    boxes = sum(n for label, n in totals.boxes.items() if label >= 0) + small
    text = (
        f'filter_cfg leaves {rest:,} of {totals.num_samples:,} images of '
        f'{totals.split}'
    )
    if number:
        text += f': {reasons}'
    if small:
        least = expected.filter_cfg['bbox_min_size']
        text += (
            f'; of {boxes:,} objects, {small:,} are ignored as narrower or '
            f'lower than bbox_min_size={least}'
        )
    severity, remedy = Severity.INFO, ''
    if small and small == boxes:
        text += '; nothing is left to learn'
        severity = Severity.ERROR
    if rest < _FEW * totals.num_samples:
        severity = max(severity, Severity.WARNING)
    if not rest:
        text += '; building an empty data set fails'
        severity = Severity.ERROR
    if severity > Severity.INFO:
        ways = {
            ' min_size': 'lower min_size of filter_cfg',
            'bbox_min_size': 'lower bbox_min_size of filter_cfg',
            'filter_empty_gt': 'compare metainfo.classes with the names in '
            'the annotations, letter by letter, or set filter_empty_gt=False',
        }
        remedy = '; '.join(way for key, way in ways.items() if key in text)
    yield new_finding(
        text,
        severity=severity,
        remedy=remedy,
        key=f'{totals.split.partition("[")[0]}_dataloader.dataset.filter_cfg',
        value=totals.split,
    )


@CFG.rule(
    'CFG014',
    title='loading changes the value that the loss ignores',
    remedy='take the setting that changes it out of the config',
    scope='split',
    subject='split',
    unit='pixel',
    explains=('CFG006', 'SEG003', 'SEG004'),
)
def _loses_ignored(totals: SplitTotals, expected: Expectations) -> Findings:
    """Label maps hold the ignored value, and none does when it is loaded.

    Without one of the settings, all that they hold is a class or ignored.
    """
    ignored = expected.ignore_index
    if ignored not in totals.pixels:
        return
    loaded = loaded_values(expected).loaded
    if any(loaded(stored) == ignored for stored in totals.pixels):
        return
    for setting, remedy in (
        ('reduce_zero_label', 'reduce_zero_label=False of the data set'),
        ('label_map', 'metainfo.classes so that there is no label_map'),
    ):
        without = type(getattr(expected, setting))()
        table = loaded_values(
            msgspec.structs.replace(expected, **{setting: without})
        )
        if table.loaded(ignored) == ignored and all(
            table.kind_of(stored) in ('class', 'ignored')
            for stored in totals.pixels
        ):
            yield new_finding(
                f'the loss ignores {ignored}, which label maps hold, but '
                f'{setting} turns it into '
                f'{_meaning(loaded(ignored), expected)}: no pixel is ignored, '
                'and other labels change, too',
                remedy=f'set {remedy}: the label maps fit ignore_index='
                f'{ignored} and {expected.num_classes} classes as they are',
                value=str(ignored),
                count=totals.pixels[ignored],
            )
            return


# Of data sets whose label maps have 0 for no class and the classes from 1:
# number of the classes, and the first two.
_FROM_ONE = {
    (150, 'wall', 'building'): 'ADE20K',
    (59, 'aeroplane', 'bag'): 'Pascal Context',
    (7, 'background', 'building'): 'LoveDA',
    (6, 'impervious_surface', 'building'): 'Potsdam and Vaihingen',
}


@CFG.rule(
    'CFG013',
    title='label maps that seem to need reduce_zero_label',
    severity=Severity.WARNING,
    remedy='if value 1 of the label maps is the first class, set '
    'reduce_zero_label=True of the data set; else each class is trained '
    'under the name of the one before it, without any error',
    scope='split',
    subject='split',
    unit='pixel',
)
def not_reduced(totals: SplitTotals, expected: Expectations) -> Findings:
    """Classes of such a data set, 0 in its masks, and no other void."""
    first = expected.classes[:2]
    name = _FROM_ONE.get((expected.num_classes, *first))
    if name is None or expected.reduce_zero_label or expected.label_map:
        return
    count = totals.pixels.get(0, 0)
    if count and expected.ignore_index not in totals.pixels:
        yield new_finding(
            f'the classes are those of {name}, whose label maps have 0 for '
            f'no class; here 0 is loaded as {first[0]!r}, and nothing is '
            'ignored',
            value='0',
            count=count,
        )
