"""Check the labels of a data set: read its files, judge them, report."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .backends import serial
from .by_digest import ImagesByDigest
from .causes import likely_remedies
from .facts import ImageFacts, MaskFacts, Sample, SampleFacts
from .findings import Finding
from .groups import group_findings
from .report import Report, make_split_report
from .rules import RULES, Rule
from .scan import scan, stored_facts
from .sources import SplitSource
from .store import FactStore
from .totals import SplitTotals
from .work import ReadOptions, WorkItem

__all__ = ['check_labels', 'sample_facts', 'work_items']


def _options(source: SplitSource) -> ReadOptions:
    return ReadOptions(backend_args=source.backend_args)


def _items(sample: Sample, options: ReadOptions) -> Iterator[WorkItem]:
    """Files of a sample, the label map first."""
    for path, kind in ((sample.mask, 'mask'), (sample.image, 'image')):
        if path:
            yield WorkItem(path=path, kind=kind, options=options)


def work_items(sources: Iterable[SplitSource]) -> Iterator[WorkItem]:
    """All files of some splits.

    Args:
        sources: The splits.

    Yields:
        Label maps and images, in the order of samples.
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
    for sample in samples:
        mask: MaskFacts | None = None
        image: ImageFacts | None = None
        if sample.mask:
            mask = next(known)[1]
        if sample.image:
            image = next(known)[1]
        yield SampleFacts(
            split=source.expected.split,
            sample=sample,
            mask=mask,
            image=image,
        )


def _sample_findings(
    source: SplitSource,
    store: FactStore,
    rules: Sequence[Rule],
    totals: SplitTotals,
) -> Iterator[Finding]:
    """Findings of each sample; adds it to the totals, images included."""
    checks = [rule.check for rule in rules if rule.scope == 'sample']
    expected = source.expected
    totals.images = images = ImagesByDigest()
    for facts in sample_facts(source, store):
        totals.add(facts)
        if facts.image is not None:
            images.add(facts.sample.image, facts.image)
        for check in checks:
            yield from check(facts, expected)


def _findings(
    sources: Sequence[SplitSource],
    store: FactStore,
    rules: Sequence[Rule],
    totals: Sequence[SplitTotals],
    remedies: dict[str, str],
) -> Iterator[Finding]:
    """All findings; fills totals and remedies on the way."""
    for source, own in zip(sources, totals):
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
