"""Sources to facts: read files that have changed, and look up the facts."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ...datasets import box_limits
from .backends import run_serial
from .expectations import Expectations, SplitSource, why_left_out
from .facts import (
    ImageFacts,
    Sample,
    SampleFacts,
    VocFile,
    YoloFile,
    has_size,
    loaded_size,
)
from .store import FactStore, chunks
from .work import READERS, Result, WorkItem, stored_kind, unpack

# Files that are looked up together.
_CHUNK = 4096


def _stamp(item: WorkItem) -> str:
    """What a file is now, without reading it.

    Size and time of change in nanoseconds; ``'absent'`` for a file that is
    not there; empty where only reading can tell, as in object stores.
    """
    args = item.backend_args or {}
    prefix = item.path.rpartition('://')[0]
    # Whether mmengine reads the path from the file system, by name.
    if args.get('backend', prefix) not in ('', 'local'):
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
            for item, file, stamp, row in zip(chunk, files, stamps, rows):
                reader, before = row or ('', '')
                fits = reader == str(READERS[item.kind].version)
                if (fits and stamp and before == stamp) or file in handed_out:
                    known += 1
                    continue
                handed_out.add(file)
                at_work.add(file)
                yield msgspec.structs.replace(
                    item, stamp=stamp, known=before if fits else ''
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
    for kind in ('mask', 'image', 'depth', 'normal'):
        path = getattr(sample, kind)
        if path.endswith('.npy'):
            paths.append((path, f'npy_{kind}'))
        elif path:
            is_verified = source.verify and kind == 'mask'
            paths.append((path, 'verified_mask' if is_verified else kind))
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
    label_of = {name: i for i, name in enumerate(source.expected.classes)}
    samples, ahead = itertools.tee(source.samples())
    items = (item for one in ahead for item in _items_of(one, source))
    known = stored_facts(items, store)
    for sample in samples:
        mask = next(known) if sample.mask else None
        image = next(known) if sample.image else None
        depth = next(known) if sample.depth else None
        normal = next(known) if sample.normal else None
        annotation = yolo = None
        if sample.annotation_kind == 'yolo':
            yolo = next(known)
            size = loaded_size(image) if has_size(image) else None
            sample = with_lines(sample, yolo, size, source.expected.classes)
        elif sample.annotation_kind:
            annotation = next(known)
            sample = with_boxes(sample, annotation, label_of)
            if source.expected.filter_cfg:
                sample = _filtered(sample, annotation, image, source.expected)
        yield SampleFacts(
            split=split,
            sample=sample,
            mask=mask,
            image=image,
            annotation=annotation,
            yolo=yolo,
            depth=depth,
            normal=normal,
        )


def with_boxes(
    sample: Sample, file: VocFile, label_of: dict[str, int]
) -> Sample:
    """A sample and what its own annotation file says.

    The label of a class that is not known is -1.
    """
    boxes = tuple(
        msgspec.structs.replace(box, label=label_of.get(box.class_name, -1))
        for box in file.boxes
    )
    return msgspec.structs.replace(
        sample, boxes=boxes, width=file.width, height=file.height
    )


def with_lines(
    sample: Sample,
    file: YoloFile,
    size: tuple[int, int] | None,
    classes: Sequence[str],
) -> Sample:
    """A sample and what its own label file of YOLO says.

    Without a size, of a picture that cannot be read, boxes are only counted.
    """
    if size is None:
        return msgspec.structs.replace(sample, num_boxes=len(file.boxes))
    boxes = tuple(
        msgspec.structs.replace(
            box,
            box=tuple(
                side * length for side, length in zip(box.box, 2 * size)
            ),
            class_name=classes[box.label] if box.label < len(classes) else '',
        )
        for box in file.boxes
    )
    return msgspec.structs.replace(sample, boxes=boxes)


def _filtered(
    sample: Sample,
    file: VocFile,
    image: ImageFacts | None,
    expected: Expectations,
) -> Sample:
    """A sample, and what MMDetection's XMLDataset leaves out of it."""
    size = file.width, file.height
    if not file.has_size and image is not None:
        size = image.width, image.height
    known = [box for box in sample.boxes if box.label >= 0]
    least = expected.filter_cfg.get('bbox_min_size', 0)
    num_small = 0
    for box in known:
        if not box.ignored and box_limits.is_finite(box.box):
            # The loader makes whole numbers of them.
            x1, y1, x2, y2 = map(int, box.box)
            num_small += x2 - x1 < least or y2 - y1 < least
    return msgspec.structs.replace(
        sample,
        num_small=num_small,
        left_out=why_left_out(len(known), min(size), expected.filter_cfg),
    )
