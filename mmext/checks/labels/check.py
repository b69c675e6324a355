"""Check the labels of a data set: facts to rules, totals and a report."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ...utils.label_spec import likely_cause
from ..findings import ErrorCatcher, Finding, Rule, code_location
from .expectations import Expectations, SplitSource, loaded_values
from .report import FindingGroups, Report
from .rules.registry import READ001, RULES
from .scan import sample_facts, scan, work_items
from .sources.coco import coco_class_counts
from .store import FactStore
from .totals import SplitTotals, make_split_report
from .work import WorkItem, run_serial

_MAP_SHAPE = (1, 1, 1)
# What is wrong with a file that nothing but a metric reads.
_OF_METRIC = ('COCO001', 'COCO014', 'COCO015')
# Files that rules of the scope 'sample' may need, besides boxes.
_NEEDS = ('mask', 'image', 'annotation', 'yolo')


class _Crashes:
    """Findings of parts that ended with an exception."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        # Splits of which nothing else can be checked.
        self.splits: set[str] = set()

    def catch_errors(
        self, split: str, what: str, file: str = '', whole: bool = False
    ) -> ErrorCatcher:
        """A block whose exception becomes a finding of a split."""

        def take(error: Exception) -> None:
            text = ' '.join(f'{type(error).__name__}: {error}'.split())
            location = code_location(error)
            at = f' ({location})' if location else ''
            if whole:
                self.splits.add(split)
                at += ', so that it is not checked, nor compared with others'
            name = split.partition('[')[0]
            self.findings.append(
                READ001.finding(
                    f'{what} ended with {text}{at}',
                    split=split,
                    value=text,
                    file=file,
                    key=f'{name}_dataloader.dataset' if name else '',
                )
            )

        return ErrorCatcher(take)

    def work_items(self, sources: Sequence[SplitSource]) -> Iterator[WorkItem]:
        """Files of all splits; of one that cannot be listed those before."""
        for source in sources:
            split = source.expected.split
            with self.catch_errors(split, 'listing the samples', whole=True):
                yield from work_items([source])


def _likely_remedies(
    totals: Sequence[SplitTotals], expected: Sequence[Expectations]
) -> dict[str, str]:
    """Remedies that take all values into account, by rule id."""
    bad: dict[int, int] = {}
    fine: set[int] = set()
    wanted: Expectations | None = None
    for own, expectations in zip(totals, expected):
        table = loaded_values(expectations)
        for stored, count in own.pixels.items():
            kind, value = table.kind_of(stored), table.loaded(stored)
            if kind == 'bad':
                bad[value] = bad.get(value, 0) + count
                wanted = wanted or expectations
            elif kind in ('class', 'ignored'):
                fine.add(value)
    if wanted is None:
        return {}
    known = wanted.num_classes, wanted.ignore_index
    return {'SEG001': likely_cause(*known, bad, fine, _MAP_SHAPE)}


def _learn_classes(
    sources: Sequence[SplitSource], store: FactStore
) -> list[SplitSource]:
    """Give sources without classes the names that all their files have."""
    names = {
        box.class_name
        for source in sources
        if source.learn_classes
        for facts in sample_facts(source, store)
        for box in facts.sample.boxes
    }
    classes = tuple(sorted(names - {''}))
    return [
        dataclasses.replace(
            source,
            expected=msgspec.structs.replace(
                source.expected, classes=classes, num_classes=len(classes)
            ),
        )
        if source.learn_classes
        else source
        for source in sources
    ]


def _sample_findings(
    source: SplitSource,
    store: FactStore,
    rules: Sequence[Rule],
    totals: SplitTotals,
    crashes: _Crashes,
) -> Iterator[Finding]:
    """Findings of each sample; adds it to the totals."""
    for facts in sample_facts(source, store):
        totals.add(facts, boxes=source.coco is None)
        sample = facts.sample
        there = {kind for kind in _NEEDS if getattr(facts, kind) is not None}
        there.update(('', 'boxes') if sample.boxes else ('',))
        file = sample.mask or sample.annotation or sample.image
        with crashes.catch_errors(totals.split, 'checking a sample', file):
            for rule in rules:
                if rule.needs in there:
                    yield from rule.check(facts, source.expected)


def _file_findings(
    source: SplitSource,
    of_scope: Mapping[str, Sequence[Rule]],
    totals: SplitTotals,
) -> Iterator[Finding]:
    """What is wrong with an annotation file, and with files of no sample."""
    if source.coco is not None:
        notes = source.coco.annotations
        totals.add_counts(
            coco_class_counts(source.coco, source.expected.classes),
            int(np.count_nonzero((notes.iscrowd != 0) | notes.ignore)),
        )
        for rule in of_scope['coco']:
            yield from rule.check(source.coco, source.expected)
    if source.evaluated is not None:
        expected = msgspec.structs.replace(
            source.expected, coco_metric=source.metric
        )
        for rule in of_scope['coco']:
            if rule.id in _OF_METRIC:
                yield from rule.check(source.evaluated, expected)
    for orphan in source.orphans() if of_scope['orphan'] else ():
        for rule in of_scope['orphan']:
            yield from rule.check(orphan, source.expected)


def _findings(
    sources: Sequence[SplitSource],
    store: FactStore,
    rules: Sequence[Rule],
    totals: Sequence[SplitTotals],
    crashes: _Crashes,
) -> Iterator[Finding]:
    """All findings; fills the totals on the way."""
    of_scope: dict[str, list[Rule]] = defaultdict(list)
    for rule in rules:
        of_scope[rule.scope].append(rule)
    for source, own in zip(sources, totals):
        if own.split in crashes.splits:
            continue
        with crashes.catch_errors(own.split, 'checking the files'):
            yield from _file_findings(source, of_scope, own)
        with crashes.catch_errors(own.split, 'checking the samples'):
            yield from _sample_findings(
                source, store, of_scope['sample'], own, crashes
            )
        for rule in of_scope['split']:
            with crashes.catch_errors(own.split, f'rule {rule.id}'):
                yield from rule.check(own, source.expected)
    expected = [source.expected for source in sources]
    # Splits cannot be compared with one that was not read.
    for rule in of_scope['run'] if not crashes.splits else ():
        with crashes.catch_errors('', f'rule {rule.id}'):
            yield from rule.check(totals, expected)
    if any(rule.id == READ001.id for rule in rules):
        yield from crashes.findings


def check_sources(
    sources: Sequence[SplitSource],
    store: FactStore,
    *,
    rules: Sequence[Rule] | None = None,
    run: Callable[..., Iterator[Any]] = run_serial,
    progress: Callable[[int], Any] = lambda done: None,
    num_examples: int | None = 5,
    tell: Callable[[Finding], Any] = lambda finding: None,
) -> Report:
    """Check the labels of some splits.

    Files that the store knows as they are now are not read again. What was
    read is in the store at once, so a run that is interrupted goes on where
    it was.

    Args:
        sources: What to check; each has a name of its own.
        store: Where facts of files are kept.
        rules: What to look for; None for all.
        run: Of a backend of :mod:`mmext.checks.labels.work`, its options
            bound. The report does not depend on it.
        progress: Called with the number of files that are read so far.
        num_examples: Places that are named for each kind of finding; None
            for all, which takes memory for each.
        tell: Called with every finding, as it is made.
    """
    names = [source.expected.split for source in sources]
    if len(set(names)) != len(names):
        raise ValueError(f'splits must have different names, got {names}')
    if rules is None:
        rules = tuple(RULES.values())
    crashes = _Crashes()
    scan(crashes.work_items(sources), store, run=run, progress=progress)
    # Nothing is known of the samples of the others.
    sources = [
        source
        if source.expected.split not in crashes.splits
        else dataclasses.replace(source, samples=lambda: iter(()), coco=None)
        for source in sources
    ]
    sources = _learn_classes(sources, store)
    totals = [
        SplitTotals(split=name, list_file=source.list_file)
        for name, source in zip(names, sources)
    ]
    groups = FindingGroups(num_examples)
    for finding in _findings(sources, store, rules, totals, crashes):
        tell(finding)
        groups.add(finding)
    expected = [source.expected for source in sources]
    remedies = _likely_remedies(totals, expected)
    return Report(
        rules=tuple(rule.id for rule in rules),
        splits=tuple(
            make_split_report(own, source.expected)
            for own, source in zip(totals, sources)
        ),
        groups=groups.finish(remedies),
    )
