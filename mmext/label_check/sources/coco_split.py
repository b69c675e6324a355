"""A split whose samples are those of an annotation file in COCO's format."""

import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import PurePosixPath

import msgspec
import numpy as np
from mmengine.fileio import get

from ..expectations import Expectations
from ..facts import Orphan, Sample
from ..readers.coco_reader import CocoFile, read_coco
from ..rules.coco_file import CocoFacts
from .coco_source import coco_samples
from .folder_files import IMAGE_SUFFIXES, files_below
from .split_source import SplitSource

__all__ = ['coco_task', 'split_of_coco']


def coco_task(file: CocoFile) -> str:
    """``'instance'`` if an object has polygons or RLE, else ``'detection'``.

    Args:
        file: What the annotation file says.
    """
    with_mask = bool(np.any(file.annotations.segmentation_kind > 0))
    return 'instance' if with_mask else 'detection'


def split_of_coco(
    path: str,
    images: str,
    expected: Expectations,
    *,
    seg_maps: str = '',
    seg_map_suffix: str = '.png',
    find_orphans: bool = False,
    backend_args: dict | None = None,
) -> SplitSource:
    """All that an annotation file names, whether a loader keeps it or not.

    Args:
        path: Of the annotation file; read once, here.
        images: Folder of its images; empty not to look at them.
        expected: Of the training. Without ``classes``, those of the file;
            without ``num_classes``, their number; the task is that of the
            file unless it is ``'panoptic'``.
        seg_maps: Folder of label maps of the same images; empty for none.
        seg_map_suffix: Of theirs.
        find_orphans: Look for images that the file does not name.
        backend_args: Of MMEngine's file backend.

    Returns:
        A sample for each image of the file.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    file = read_coco(get(path, backend_args=backend_args))
    classes = expected.classes or tuple(dict.fromkeys(file.categories.name))
    expected = msgspec.structs.replace(
        expected,
        classes=classes,
        num_classes=expected.num_classes or len(classes),
        task=expected.task if expected.task == 'panoptic' else coco_task(file),
    )
    facts = CocoFacts(split=expected.split, path=path, file=file)

    # Few are kept: without boxes that may be wrong, a sample is small.
    @cache
    def listed() -> Sequence[Sample]:
        found = coco_samples(file, path, images, classes)
        if not seg_maps:
            return tuple(found)
        return tuple(
            _with_map(each, seg_maps, seg_map_suffix, images) for each in found
        )

    return SplitSource(
        expected,
        lambda: iter(listed()),
        orphans=(lambda: _orphans(facts, images))
        if find_orphans and images
        else lambda: iter(()),
        coco=lambda: facts,
        backend_args=backend_args,
    )


def _with_map(
    sample: Sample, seg_maps: str, suffix: str, images: str
) -> Sample:
    """The sample and its label map, which has the name of the image."""
    name = PurePosixPath(sample.image).relative_to(images).as_posix()
    stem = name.rpartition('.')[0]
    mask = str(PurePosixPath(seg_maps) / f'{stem}{suffix}')
    return msgspec.structs.replace(sample, mask=mask)


def _orphans(facts: CocoFacts, images: str) -> Iterator[Orphan]:
    named = set(facts.file.images.file_name)
    if not named:
        return  # The file could not be read, which is said elsewhere.
    for path in files_below(images, IMAGE_SUFFIXES):
        name = path[len(images) :].lstrip(os.sep).replace(os.sep, '/')
        if name not in named:
            yield Orphan(split=facts.split, path=path, kind='image')
