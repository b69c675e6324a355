"""Rules for how often classes occur, and for how their names are written."""

from collections import Counter
from collections.abc import Iterable

from ...findings import Severity, new_finding
from ..expectations import Expectations, count_classes
from ..totals import SplitTotals
from .registry import CLS, Expected, Findings, Totals


def _counts(totals: SplitTotals, expected: Expectations) -> dict[int, int]:
    """Pixels or boxes of each class; the class that is ignored left out."""
    if not expected.num_classes or not totals.num_samples:
        return {}
    if totals.is_misread:
        return {}
    if expected.task == 'unlabelled':
        return {}
    if expected.task == 'semantic':
        if not totals.num_masks:
            return {}
        counts = count_classes(totals.pixels, expected)
        counts.pop(expected.ignore_index, None)
        return counts
    return {
        label: totals.boxes.get(label, 0)
        for label in range(expected.num_classes)
    }


def _unit(expected: Expectations) -> str:
    return 'pixels' if expected.task == 'semantic' else 'boxes'


def _name(label: int, expected: Expectations) -> str:
    if label < len(expected.classes):
        return f'class {label} ({expected.classes[label]})'
    return f'class {label}'


def _absent(totals: Totals, expected: Expected, training: bool) -> Findings:
    """Classes that no part of a split has, be it of several data sets."""
    parts: dict[tuple, tuple[Expectations, Counter[int]]] = {}
    for own, wanted in zip(totals, expected):
        if wanted.split.startswith('train') != training:
            continue
        if not wanted.classes and wanted.heads:
            # Maps beside boxes: not each number needs to be a class.
            continue
        split = wanted.split.partition('[')[0]
        key = split, _unit(wanted), wanted.classes
        parts.setdefault(key, (wanted, Counter()))[1].update(
            _counts(own, wanted)
        )
    for (_, unit, classes), (wanted, counts) in parts.items():
        if not any(counts.values()):
            continue
        # What the head has beyond the names is the matter of CFG003.
        names = len(classes) or wanted.num_classes
        for label, count in counts.items():
            if not count and label < names:
                yield new_finding(
                    f'{_name(label, wanted)} has no {unit}',
                    split=wanted.split,
                    value=str(label),
                )


@CLS.rule(
    'CLS001',
    title='class that no training sample has',
    severity=Severity.WARNING,
    remedy='it cannot be learned; see whether masks or annotations have it '
    'under another value or name, or take it out of the classes',
    scope='run',
    subject='class',
)
def _absent_in_training(totals: Totals, expected: Expected) -> Findings:
    yield from _absent(totals, expected, True)


@CLS.rule(
    'CLS002',
    symptoms=('= -1.000',),
    title='class that no sample of the evaluation has',
    severity=Severity.WARNING,
    remedy='its metric is NaN or left out of the mean; evaluate on more '
    'samples, or read the mean with this in mind',
    scope='run',
    subject='class',
)
def _absent_in_evaluation(totals: Totals, expected: Expected) -> Findings:
    known = {name.message for name in _absent(totals, expected, True)}
    absent = _absent(totals, expected, False)
    yield from (name for name in absent if name.message not in known)


@CLS.rule(
    'CLS003',
    title='class that is evaluated and never trained',
    remedy='split the data anew so that the training has it, or see whether '
    'the splits were annotated with different classes',
    scope='run',
    subject='class',
)
def _only_evaluated(totals: Totals, expected: Expected) -> Findings:
    # Labels of pixels are not those of boxes.
    trained: dict[str, Counter[int]] = {}
    for own, wanted in zip(totals, expected):
        if wanted.split.startswith('train'):
            counts = trained.setdefault(_unit(wanted), Counter())
            counts.update(_counts(own, wanted))
    for own, wanted in zip(totals, expected):
        counts = trained.get(_unit(wanted), {})
        if wanted.classes_are_texts or not any(counts.values()):
            continue
        for label, count in _counts(own, wanted).items():
            if count and not counts.get(label):
                yield new_finding(
                    f'{_name(label, wanted)} has {_unit(wanted)} in '
                    f'{wanted.split} and none in the training',
                    split=wanted.split,
                    value=str(label),
                    count=count,
                )


@CLS.rule(
    'CLS005',
    symptoms=(
        'num_samples should be a positive integer value, but got num_samples=',
        '= -1.000',
    ),
    title='split without any label',
    remedy='nothing can be learned; see whether the class names of the data '
    'set are those of the annotations (unknown ones are dropped), or all '
    'pixels are ignored',
)
def _no_labels(totals: SplitTotals, expected: Expectations) -> Findings:
    counts = _counts(totals, expected)
    # Of boxes that are too small, CFG012 says so.
    if counts and not any(counts.values()) and not totals.num_small:
        severity, remedy, marked = Severity.ERROR, '', ''
        if totals.num_annotated:
            marked = (
                f'; the loader keeps none of {totals.num_annotated:,} '
                'annotated objects'
            )
        elif totals.num_ignored:
            marked = (
                f'; {totals.num_ignored:,} objects are marked as crowd, '
                'difficult or ignored'
            )
            remedy = (
                'mark crowds alone: losses and metrics leave out what has '
                'iscrowd, difficult or ignore'
            )
        # Public sets keep labels of such splits back: files without boxes,
        # or maps of void.
        elif expected.split.startswith('test') or (
            expected.split.startswith('val') and expected.task != 'semantic'
        ):
            severity = Severity.WARNING
            remedy = (
                'metrics of such a split say nothing; if its labels are '
                'kept back by those who made it, nothing is wrong'
            )
        yield new_finding(
            f'none of {totals.num_samples:,} samples has {_unit(expected)} '
            f'of the {expected.num_classes} classes{marked}',
            severity=severity,
            remedy=remedy,
            value='0',
        )


_BLANKS = str.maketrans('', '', '_-')


def likeness(name: str) -> str:
    """What is left of a name without case, blanks, hyphens, underscores."""
    return ''.join(name.split()).translate(_BLANKS).casefold()


def written_like(name: str, names: Iterable[str]) -> str:
    """The first of other names that is equal but for those; empty if none."""
    own = likeness(name)
    for other in names:
        if own and other != name and likeness(other) == own:
            return other
    return ''
