"""Rules for the config alone, and for it beside the values of the masks."""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from ....utils.label_spec import HeadSpec
from ...findings import Finding, Severity, new_finding
from ..expectations import Expectations, loaded_values
from ..totals import SplitTotals
from .registry import CFG

_Totals = Sequence[SplitTotals]
_Expected = Sequence[Expectations]


def _once(check: Callable) -> Callable:
    """Splits share a model: what is wrong with it is said once."""

    @functools.wraps(check)
    def findings(totals: _Totals, expected: _Expected) -> Iterator[Finding]:
        seen = set()
        for finding in check(totals, expected):
            key = finding.key, finding.message
            if key not in seen:
                seen.add(key)
                yield finding

    return findings


def _heads(expected: _Expected) -> Iterator[tuple[HeadSpec, Expectations]]:
    for wanted in expected:
        for head in wanted.heads:
            yield head, wanted


@CFG.rule(
    'CFG002',
    title='class_weight has another length than the classes',
    severity=Severity.ERROR,
    remedy='give one weight for each class, in the order of the classes '
    '(detectors with softmax: one more for the background)',
    in_preflight=True,
)
@_once
def weight_length(totals: _Totals, expected: _Expected) -> Iterator[Finding]:
    """Lengths of weights against num_classes of their head."""
    for head, wanted in _heads(expected):
        count = head.num_classes or wanted.num_classes
        if head.of_masks or not count:
            continue
        allowed = [count]
        if wanted.task != 'semantic':
            allowed.append(count + 1)
        for place, weights in head.class_weights:
            if len(weights) not in allowed:
                yield new_finding(
                    f'{place}.class_weight must have '
                    f'{" or ".join(map(str, allowed))} numbers '
                    f'(num_classes={count}), got {len(weights)}',
                    key=place,
                    value=str(len(weights)),
                )


@CFG.rule(
    'CFG003',
    title='num_classes is not the number of classes of the data',
    severity=Severity.ERROR,
    remedy='set num_classes of the heads to the number of '
    'metainfo.classes of the data set',
)
@_once
def class_count(totals: _Totals, expected: _Expected) -> Iterator[Finding]:
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
            f'{head.place}.num_classes': head.num_classes
            for head in wanted.heads
        } or {'num_classes': wanted.num_classes}
        # Boxes and masks of panoptic labels are of things alone.
        classes = things or wanted.classes
        for place, count in counts.items():
            if (
                not wanted.split.startswith('train')
                and classes[:count] in trained
            ):
                # The others are not asked for, as in MOT17's.
                continue
            if count and count != len(classes):
                kind = 'thing classes' if things else 'classes'
                yield new_finding(
                    f'{place} must be {len(classes)}, the number of {kind} '
                    f'of the data, got {count}',
                    key=place,
                    value=str(count),
                )


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
    severity=Severity.ERROR,
    remedy='give each class of metainfo.classes a name of its own',
    subject='class',
    in_preflight=True,
)
@_once
def named_twice(totals: _Totals, expected: _Expected) -> Iterator[Finding]:
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
    severity=Severity.ERROR,
    remedy='set reduce_zero_label of the data set alone, and take it out of '
    'LoadAnnotations, which then has that of the data set',
    subject='split',
    in_preflight=True,
)
def reduced_by_one(totals: _Totals, expected: _Expected) -> Iterator[Finding]:
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
    severity=Severity.ERROR,
    remedy='give each class a finite number of 0 or more, one of them above '
    '0 (tools/validate_labels.py --class-weights prints some)',
    in_preflight=True,
)
@_once
def weight_values(totals: _Totals, expected: _Expected) -> Iterator[Finding]:
    """NaN, infinity, numbers below 0, words, nothing but 0, or no file."""
    for head, wanted in _heads(expected):
        for place, path in head.weight_files:
            if '://' not in path and not Path(path).is_file():
                yield new_finding(
                    f'{place}.class_weight must be numbers or an existing '
                    f'file, got {path!r}',
                    remedy='correct the path, or write the file',
                    key=place,
                    value=path,
                )
        for place, weights in head.class_weights:
            for index, weight in enumerate(weights):
                problem = _why_no_weight(weight)
                if problem:
                    name = ''.join(wanted.classes[index : index + 1])
                    yield new_finding(
                        f'{place}.class_weight[{index}]'
                        f'{name and f" ({name})"} is {weight!r}: {problem}',
                        key=place,
                        value=str(weight),
                    )
            if weights and not any(weights):
                yield new_finding(
                    f'{place}.class_weight has nothing but 0: the loss is 0 '
                    'and nothing is learned',
                    key=place,
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
def left_out(totals: SplitTotals, expected: Expectations) -> Iterator[Finding]:
    """How many images and boxes filter_cfg leaves, of how many."""
    number, small = sum(totals.left_out.values()), totals.num_small
    if not number and not small:
        return
    rest = totals.num_samples - number
    reasons = ', '.join(
        f'{count:,} {reason}'
        for reason, count in sorted(totals.left_out.items())
    )
    boxes = sum(totals.boxes.values())
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
    severity = Severity.INFO
    if small and small == boxes:
        text += '; nothing is left to learn'
        severity = Severity.WARNING
    if not rest:
        text += '; building an empty data set fails'
        severity = Severity.ERROR
    yield new_finding(
        text,
        severity=severity,
        key=f'{totals.split.partition("[")[0]}_dataloader.dataset.filter_cfg',
        value=totals.split,
    )


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
def not_reduced(
    totals: SplitTotals, expected: Expectations
) -> Iterator[Finding]:
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
