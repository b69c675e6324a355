"""Check the labels of a data set: sources to facts, facts to a report.

Files that have changed are read, facts are looked up, rules get them sample by
sample, and totals sum them up.
"""

import dataclasses
import functools
import itertools
import math
import os
from collections import defaultdict
from collections.abc import (
    Callable,
    Container,
    Iterable,
    Iterator,
    Sequence,
)
from typing import Any

import msgspec
import numpy as np

from ...datasets import box_limits
from ...utils.label_spec import likely_cause
from ..findings import ErrorCatcher, Finding, Rule, Severity, code_location
from .box_columns import BoxCollector
from .expectations import (
    Expectations,
    SplitSource,
    loaded_values,
    why_left_out,
)
from .facts import (
    BoxFacts,
    Sample,
    SampleFacts,
    VocFile,
    YoloFile,
    has_size,
    loaded_size,
)
from .report import FindingGroups, Report
from .rules.registry import READ001, RULES
from .sources.coco import coco_class_counts
from .store import (
    FactStore,
    Result,
    WorkItem,
    chunks,
    is_on_disk,
    run_serial,
    stored_kind,
    unpack,
)
from .totals import SplitTotals, make_split_report

# Files that are looked up together.
_CHUNK = 4096
# Files that a sample may have, besides one of annotations.
_FILES = ('mask', 'image', 'depth', 'normal')


def _stamp(item: WorkItem) -> str:
    """What a file is now, without reading it.

    Size and time of change in nanoseconds; ``'absent'`` for a file that is
    not there; empty where only reading can tell, as in object stores.
    """
    if not is_on_disk(item.path, item.backend_args):
        return ''
    try:
        state = os.stat(item.path)
    except (FileNotFoundError, NotADirectoryError):
        return 'absent'
    except (OSError, ValueError):
        # Reading it will say what is wrong with it.
        return ''
    return f'{state.st_size}:{state.st_mtime_ns}'


def _files(items: Iterable[WorkItem]) -> list[tuple[str, str]]:
    """Path of each file, and the kind under which it is stored."""
    # Files of a data set share one object of arguments.
    kinds: dict[tuple[str, int], str] = {}
    files = []
    for item in items:
        key = item.kind, id(item.backend_args)
        if key not in kinds:
            kinds[key] = stored_kind(item)
        files.append((item.path, kinds[key]))
    return files


def scan(
    items: Iterable[WorkItem],
    store: FactStore,
    *,
    run: Callable[..., Iterator[Sequence[Result]]] = run_serial,
    batch_size: int = 16,
    progress: Callable[[int], Any] = lambda done: None,
) -> int:
    """Read the files that the store does not know as they are now.

    Results are stored as each batch arrives, so whatever ends the process
    loses no more than the batches that are at work. Memory does not depend on
    the number of files, which is returned for those that were read.
    """
    read = known = 0
    # Handed out and not stored yet: bounded, as batches in flight are. A data
    # set with several texts for an image names it as often.
    at_work: set[tuple[str, str]] = set()

    def stale() -> Iterator[WorkItem]:
        nonlocal known
        for chunk in chunks(items, _CHUNK):
            files = _files(chunk)
            stamps = [_stamp(item) for item in chunk]
            rows = store.stamps(files)
            # Handed out before the look-up and not stored then, or since.
            handed_out = set(at_work)
            for item, file, stamp, before in zip(chunk, files, stamps, rows):
                if (stamp and before == stamp) or file in handed_out:
                    known += 1
                    continue
                handed_out.add(file)
                at_work.add(file)
                yield msgspec.structs.replace(
                    item, stamp=stamp, known=before or ''
                )
            progress(read + known)

    for results in run(chunks(stale(), batch_size)):
        store.write(results)
        at_work.difference_update((r.path, r.kind) for r in results)
        read += len(results)
        progress(read + known)
    return read


def _items_of(sample: Sample, source: SplitSource) -> Iterator[WorkItem]:
    """Files of a sample, in the order of :func:`sample_facts`."""
    paths = []
    for kind in _FILES:
        path = getattr(sample, kind)
        if path.endswith('.npy'):
            paths.append((path, f'npy_{kind}'))
        elif path:
            paths.append((path, kind))
    if sample.annotation_kind:
        paths.append((sample.annotation, sample.annotation_kind))
    for path, kind in paths:
        yield WorkItem(
            path=path,
            kind=kind,
            backend_args=source.backend_args,
            kpt_shape=source.expected.kpt_shape if kind == 'yolo' else (),
        )


def stored_facts(items: Iterable[WorkItem], store: FactStore) -> Iterator[Any]:
    """Facts of files, which are looked up by the thousand, in their order.

    Raises KeyError for a file that has not been scanned.
    """
    for chunk in chunks(items, _CHUNK):
        for item, facts in zip(chunk, store.facts(_files(chunk))):
            if facts is None:
                raise KeyError(
                    f'{store.path} has no facts of {item.kind} '
                    f'{item.path!r}; scan it first'
                )
            yield unpack(item.kind, facts)


def work_items(sources: Iterable[SplitSource]) -> Iterator[WorkItem]:
    """All files of some splits, in the order of samples."""
    for source in sources:
        for sample in source.samples():
            yield from _items_of(sample, source)


def sample_facts(
    source: SplitSource, store: FactStore
) -> Iterator[SampleFacts]:
    """What is known of each sample of a split, in the order of samples."""
    split = source.expected.split
    samples, ahead = itertools.tee(source.samples())
    items = (item for one in ahead for item in _items_of(one, source))
    known = stored_facts(items, store)
    for sample in samples:
        files = {kind: next(known) for kind in _FILES if getattr(sample, kind)}
        image = files.get('image')
        if sample.annotation_kind:
            file, expected = next(known), source.expected
            size = loaded_size(image) if has_size(image) else None
            sample = annotated(sample, file, size, expected.classes)
            is_yolo = sample.annotation_kind == 'yolo'
            files['yolo' if is_yolo else 'annotation'] = file
            if not is_yolo and (file.has_size or image is None):
                size = file.width, file.height
            if expected.filter_cfg and size is not None:
                sample = _filtered(sample, size, expected)
        yield SampleFacts(split=split, sample=sample, **files)


def annotated(
    sample: Sample,
    file: VocFile | YoloFile,
    size: tuple[int, int] | None,
    classes: Sequence[str],
) -> Sample:
    """A sample and what its own annotation file says.

    The label of a class that is not known is -1. Boxes of YOLO are fractions
    of ``size``; without one, of a picture that cannot be read, they are only
    counted.
    """
    if isinstance(file, VocFile):
        label_of = {name: label for label, name in enumerate(classes)}
        boxes = tuple(
            msgspec.structs.replace(
                box, label=label_of.get(box.class_name, -1)
            )
            for box in file.boxes
        )
        return msgspec.structs.replace(
            sample, boxes=boxes, width=file.width, height=file.height
        )
    if size is None:
        return msgspec.structs.replace(sample, num_boxes=len(file.boxes))
    boxes = tuple(_in_pixels(box, size, classes) for box in file.boxes)
    return msgspec.structs.replace(sample, boxes=boxes)


def _in_pixels(
    box: BoxFacts, size: tuple[int, int], classes: Sequence[str]
) -> BoxFacts:
    """A box of YOLO, in fractions, as YOLODataset loads it."""
    x1, y1, x2, y2 = (
        # YOLO002 names lines whose numbers are not fractions.
        math.nan if box.unreadable else side * length
        for side, length in zip(box.box, 2 * size)
    )
    return msgspec.structs.replace(
        box,
        box=(x1, y1, x2, y2),
        class_name=classes[box.label] if box.label < len(classes) else '',
        small=min(x2 - x1, y2 - y1) < box_limits.MIN_SIZE,
    )


def _filtered(
    sample: Sample, size: tuple[int, int], expected: Expectations
) -> Sample:
    """A sample, and what XMLDataset and YOLODataset leave out of it."""
    least = expected.filter_cfg.get('bbox_min_size', 0)

    def is_small(box: BoxFacts) -> bool:
        if box.label < 0 or box.ignored or not box_limits.is_finite(box.box):
            return False
        # The loader makes whole numbers of them.
        x1, y1, x2, y2 = map(int, box.box)
        return x2 - x1 < least or y2 - y1 < least

    boxes = sample.boxes
    if least:
        boxes = tuple(
            msgspec.structs.replace(box, small=is_small(box)) for box in boxes
        )
    known = sum(box.label >= 0 for box in boxes)
    return msgspec.structs.replace(
        sample,
        boxes=boxes,
        num_small=sum(box.small for box in boxes) if least else 0,
        left_out=why_left_out(known, min(size), expected.filter_cfg),
    )


_MAP_SHAPE = (1, 1, 1)
# Facts that rules of samples need, see Rule.needs.
_NEEDS = ('mask', 'image', 'annotation', 'yolo', 'depth', 'normal')
# What is wrong with a file that nothing but a metric reads.
_OF_METRIC = ('COCO001', 'COCO014', 'COCO015')


class _Check:
    """What some rules find; what ends with an exception is a finding, too."""

    def __init__(self, rules: Sequence[Rule], store: FactStore) -> None:
        self.store = store
        self.of_scope: dict[str, list[Rule]] = defaultdict(list)
        for rule in rules:
            self.of_scope[rule.scope].append(rule)
        self.crashes: list[Finding] = []
        # Splits of which nothing else can be checked.
        self.broken: set[str] = set()

    def catch_errors(
        self, split: str, what: str, file: str = '', whole: bool = False
    ) -> ErrorCatcher:
        """A block whose exception becomes a finding of a split."""

        def take(error: Exception) -> None:
            text = ' '.join(f'{type(error).__name__}: {error}'.split())
            location = code_location(error)
            at = f' ({location})' if location else ''
            if whole:
                self.broken.add(split)
                at += ', so that it is not checked, nor compared with others'
            name = split.partition('[')[0]
            self.crashes.append(
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

    def findings(
        self, sources: Sequence[SplitSource], totals: Sequence[SplitTotals]
    ) -> Iterator[Finding]:
        """All findings; fills the totals on the way."""
        for source, own in zip(sources, totals):
            if own.split in self.broken:
                continue
            with self.catch_errors(own.split, 'adding up the samples'):
                add_up(source, self.store, own)
            silent: set[str] = set()
            # Rules that explain others go first.
            for rule in sorted(
                self.of_scope['split'], key=lambda rule: not rule.explains
            ):
                if rule.id in silent:
                    continue
                with self.catch_errors(own.split, f'rule {rule.id}'):
                    for finding in rule.check(own, source.expected):
                        if finding.severity is Severity.ERROR:
                            silent.update(rule.explains)
                            own.is_misread |= bool(rule.explains)
                        yield finding
            own.columns = None
            with self.catch_errors(own.split, 'checking the files'):
                yield from self._of_files(source, silent)
            with self.catch_errors(own.split, 'checking the samples'):
                yield from self._of_samples(source, silent)
        expected = [source.expected for source in sources]
        # Splits cannot be compared with one that was not read.
        for rule in self.of_scope['run'] if not self.broken else ():
            with self.catch_errors('', f'rule {rule.id}'):
                yield from rule.check(totals, expected)
        if READ001 in self.of_scope[READ001.scope]:
            yield from self.crashes

    def _of_files(
        self, source: SplitSource, silent: Container[str]
    ) -> Iterator[Finding]:
        """Findings of an annotation file, and of files of no sample."""
        expected = source.expected
        rules = [r for r in self.of_scope['coco'] if r.id not in silent]
        for rule in rules if source.coco is not None else ():
            yield from rule.check(source.coco, expected)
        if source.evaluated is not None:
            own = msgspec.structs.replace(expected, coco_metric=source.metric)
            for rule in rules:
                if rule.id in _OF_METRIC:
                    yield from rule.check(source.evaluated, own)
        for orphan in source.orphans() if self.of_scope['orphan'] else ():
            for rule in self.of_scope['orphan']:
                yield from rule.check(orphan, expected)

    def _of_samples(
        self, source: SplitSource, silent: Container[str]
    ) -> Iterator[Finding]:
        """Findings of each sample."""
        rules = [r for r in self.of_scope['sample'] if r.id not in silent]
        rules_for = functools.cache(
            lambda there: [rule for rule in rules if rule.needs in there]
        )
        split = source.expected.split
        for facts in sample_facts(source, self.store):
            sample = facts.sample
            there = {'', 'boxes'} if sample.boxes else {''}
            there.update(kind for kind in _NEEDS if getattr(facts, kind))
            file = sample.mask or sample.annotation or sample.image
            with self.catch_errors(split, 'checking a sample', file):
                for rule in rules_for(frozenset(there)):
                    yield from rule.check(facts, source.expected)


def add_up(source: SplitSource, store: FactStore, totals: SplitTotals) -> None:
    """Fill the totals of a split with all its samples."""
    collector = BoxCollector(source)
    for facts in sample_facts(source, store):
        totals.add(facts, boxes=source.coco is None)
        collector.add(facts)
    totals.columns = collector.columns()
    if source.coco is not None:
        notes = source.coco.annotations
        marked = int(np.count_nonzero((notes.iscrowd != 0) | notes.ignore))
        totals.add_counts(
            coco_class_counts(source.coco, source.expected.classes),
            num_ignored=marked,
            num_annotated=len(notes.id) - marked,
        )


def _likely_remedies(
    totals: Sequence[SplitTotals], sources: Sequence[SplitSource]
) -> dict[str, str]:
    """Remedies that take all values into account, by rule id."""
    bad: dict[int, int] = {}
    fine: set[int] = set()
    wanted: Expectations | None = None
    for own, source in zip(totals, sources):
        table = loaded_values(source.expected)
        for stored, count in own.pixels.items():
            kind, value = table.kind_of(stored), table.loaded(stored)
            if kind == 'bad':
                bad[value] = bad.get(value, 0) + count
                wanted = wanted or source.expected
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
    """Check the labels of some splits, whose names differ.

    Files that the store knows as they are now are not read again. What was
    read is in the store at once, so a run that is interrupted goes on where
    it was. The report does not depend on ``run``, a backend of
    :mod:`mmext.checks.labels.store`. ``progress`` gets the number of files
    that are read so far, ``tell`` every finding as it is made; of each kind
    ``num_examples`` are in the report, or all for None, which takes memory for
    each.
    """
    names = [source.expected.split for source in sources]
    if len(set(names)) != len(names):
        raise ValueError(f'splits must have different names, got {names}')
    if rules is None:
        rules = tuple(RULES.values())
    check = _Check(rules, store)
    scan(check.work_items(sources), store, run=run, progress=progress)
    # Nothing is known of the samples of the others.
    sources = [
        source
        if source.expected.split not in check.broken
        else dataclasses.replace(source, samples=lambda: iter(()), coco=None)
        for source in sources
    ]
    sources = _learn_classes(sources, store)
    totals = [
        SplitTotals(split=name, list_file=source.list_file)
        for name, source in zip(names, sources)
    ]
    groups = FindingGroups(num_examples)
    for finding in check.findings(sources, totals):
        tell(finding)
        groups.add(finding)
    return Report(
        rules=tuple(rule.id for rule in rules),
        splits=tuple(
            make_split_report(own, source.expected)
            for own, source in zip(totals, sources)
        ),
        groups=groups.finish(_likely_remedies(totals, sources)),
    )
