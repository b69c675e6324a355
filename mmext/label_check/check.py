"""Check the labels of a data set: read its files, judge them, report."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from .backends import serial
from .causes import likely_remedies
from .expectations import Expectations
from .facts import Sample, SampleFacts, VocFile
from .findings import Finding
from .groups import group_findings
from .report import Report, make_split_report
from .rules import RULES, Rule
from .scan import scan, stored_facts
from .sources import SplitSource
from .sources.coco_source import coco_class_counts
from .store import FactStore
from .totals import SplitTotals
from .verdicts import judge_samples
from .work import ReadOptions, WorkItem

__all__ = ['check_labels', 'sample_facts', 'with_boxes', 'work_items']


def _options(source: SplitSource) -> ReadOptions:
    return ReadOptions(backend_args=source.backend_args, verify=source.verify)


def _items(sample: Sample, options: ReadOptions) -> Iterator[WorkItem]:
    """Files of a sample, in the order of :func:`sample_facts`."""
    if sample.mask:
        yield WorkItem(path=sample.mask, kind='mask', options=options)
    if sample.image:
        yield WorkItem(path=sample.image, kind='image', options=options)
    if sample.annotation_kind:
        yield WorkItem(
            path=sample.annotation,
            kind=sample.annotation_kind,
            options=options,
        )


def with_boxes(
    sample: Sample, file: VocFile, label_of: dict[str, int]
) -> Sample:
    """A sample and what its own annotation file says.

    Args:
        sample: Without boxes.
        file: What the file says.
        label_of: Name of each class to its label.

    Returns:
        The sample with the boxes of the file; the label of a class that is
        not known is -1.
    """
    boxes = tuple(
        msgspec.structs.replace(box, label=label_of.get(box.class_name, -1))
        for box in file.boxes
    )
    return msgspec.structs.replace(
        sample, boxes=boxes, width=file.width, height=file.height
    )


def work_items(sources: Iterable[SplitSource]) -> Iterator[WorkItem]:
    """All files of some splits.

    Args:
        sources: The splits.

    Yields:
        Label maps, images and annotation files, in the order of samples.
    """
    for source in sources:
        options = _options(source)
        for sample in source.samples():
            yield from _items(sample, options)


def sample_facts(
    source: SplitSource, store: FactStore
) -> Iterator[SampleFacts]:
    """What is known of each sample of a split.

    Args:
        source: The split.
        store: Holds the facts of its files, see
            :func:`~mmext.label_check.scan.scan`.

    Yields:
        In the order of samples.

    Raises:
        KeyError: If a file has not been scanned.

    Note:
        Files are looked up by the thousand, ahead of their samples; memory
        does not depend on their number.
    """
    options = _options(source)
    samples, ahead = itertools.tee(source.samples())
    items = (item for each in ahead for item in _items(each, options))
    known = stored_facts(items, store)
    facts_of = _facts_of(source.expected)
    for sample in samples:
        number = sum(1 for _ in _items(sample, options))
        yield facts_of(sample, [next(known)[1] for _ in range(number)])


def _facts_of(
    expected: Expectations,
) -> Callable[[Sample, Sequence], SampleFacts]:
    """How a sample and the facts of its files, as ordered, are put together.

    The files are those of :func:`_items`.
    """
    label_of = {name: i for i, name in enumerate(expected.classes)}

    def facts_of(sample: Sample, facts: Sequence) -> SampleFacts:
        left = iter(facts)
        mask = next(left) if sample.mask else None
        image = next(left) if sample.image else None
        annotation = None
        if sample.annotation_kind:
            annotation = next(left)
            sample = with_boxes(sample, annotation, label_of)
        return SampleFacts(
            split=expected.split,
            sample=sample,
            mask=mask,
            image=image,
            annotation=annotation,
        )

    return facts_of


def _learn_classes(
    sources: Sequence[SplitSource], store: FactStore
) -> list[SplitSource]:
    """Give sources without classes the names that all their files have."""
    names = sorted(
        {
            box.class_name
            for source in sources
            if source.learn_classes
            for facts in sample_facts(source, store)
            for box in facts.sample.boxes
            if box.class_name
        }
    )
    return [
        dataclasses.replace(
            source,
            expected=msgspec.structs.replace(
                source.expected, classes=tuple(names), num_classes=len(names)
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
) -> Iterator[Finding]:
    """Findings of each sample; adds it to the totals, images included."""
    return judge_samples(
        source.samples(),
        store,
        [rule for rule in rules if rule.scope == 'sample'],
        source.expected,
        totals,
        items_of=partial(_items, options=_options(source)),
        facts_of=_facts_of(source.expected),
        boxes=source.coco is None,
    )


def _file_findings(
    source: SplitSource, rules: Sequence[Rule], totals: SplitTotals
) -> Iterator[Finding]:
    """What is wrong with an annotation file, and with files of no sample."""
    by_scope = {
        scope: [rule.check for rule in rules if rule.scope == scope]
        for scope in ('coco', 'orphan')
    }
    if source.coco is not None:
        facts = source.coco()
        notes = facts.file.annotations
        totals.add_counts(
            coco_class_counts(facts.file, source.expected.classes),
            int(np.count_nonzero((notes.iscrowd != 0) | notes.ignore)),
        )
        for check in by_scope['coco']:
            yield from check(facts, source.expected)
    if by_scope['orphan']:
        for orphan in source.orphans():
            for check in by_scope['orphan']:
                yield from check(orphan, source.expected)


def _findings(
    sources: Sequence[SplitSource],
    store: FactStore,
    rules: Sequence[Rule],
    totals: Sequence[SplitTotals],
    remedies: dict[str, str],
) -> Iterator[Finding]:
    """All findings; fills totals and remedies on the way."""
    for source, own in zip(sources, totals):
        yield from _file_findings(source, rules, own)
        yield from _sample_findings(source, store, rules, own)
        for rule in rules:
            if rule.scope == 'split':
                yield from rule.check(own, source.expected)
    expected = [source.expected for source in sources]
    for rule in rules:
        if rule.scope == 'run':
            yield from rule.check(totals, expected)
    remedies.update(likely_remedies(totals, expected))


def check_labels(
    sources: Sequence[SplitSource],
    store: FactStore,
    *,
    rules: Sequence[Rule] | None = None,
    run: Callable[..., Iterator[Any]] = serial.run,
    progress: Callable[[int], Any] | None = None,
    num_examples: int = 5,
) -> Report:
    """Check the labels of some splits.

    Files that the store knows as they are now are not read again. What was
    read is in the store at once, so a run that is interrupted goes on where
    it was.

    Args:
        sources: What to check.
        store: Where facts of files are kept.
        rules: What to look for, see
            :func:`~mmext.label_check.rules.select_rules`; None for all.
        run: Of a backend of :mod:`mmext.label_check.backends`, its options
            bound.
        progress: Called with the number of files that are read so far.
        num_examples: Files that are named for each kind of finding.

    Returns:
        The report; the same for the same data, whatever the backend.

    Raises:
        ValueError: If two sources have the same name.
    """
    names = [source.expected.split for source in sources]
    if len(set(names)) != len(names):
        raise ValueError(f'splits must have different names, got {names}')
    if rules is None:
        rules = tuple(RULES.values())
    scan(work_items(sources), store, run=run, progress=progress)
    sources = _learn_classes(sources, store)
    totals = [SplitTotals(split=name) for name in names]
    remedies: dict[str, str] = {}
    groups = group_findings(
        _findings(sources, store, rules, totals, remedies),
        num_examples=num_examples,
        remedies=remedies,
    )
    return Report(
        rules=tuple(rule.id for rule in rules),
        splits=tuple(
            make_split_report(own, source.expected)
            for own, source in zip(totals, sources)
        ),
        groups=tuple(groups),
    )
