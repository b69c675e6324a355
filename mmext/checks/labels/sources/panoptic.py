"""Samples of a panoptic annotation file: a PNG of ids for each image."""

import os
from collections.abc import Sequence
from functools import cache

import msgspec

from ..expectations import Expectations
from ..facts import Sample
from ..readers.coco import CocoFacts
from ..readers.panoptic import read_panoptic
from .coco import coco_samples, read_bytes
from .split_source import SplitSource


def split_of_panoptic(
    path: str,
    images: str,
    maps: str,
    expected: Expectations,
    *,
    names_of_file: bool = False,
    backend_args: dict | None = None,
) -> SplitSource:
    """All that a panoptic annotation file names.

    Args:
        path: Of the annotation file; read once, here.
        images: Folder of its images; empty not to look at them.
        maps: Folder of the PNG files; empty not to look at them.
        expected: Of the training. Without ``classes``, those of the file.
        names_of_file: PNG files are named as the file says; else as the
            image, which is what MMDetection goes by.
        backend_args: Of MMEngine's file backend.

    Returns:
        A sample for each image of the file.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    file = read_panoptic(read_bytes(path, backend_args))
    names = tuple(dict.fromkeys(file.coco.categories.name))
    classes = expected.classes or names
    things = expected.thing_classes or tuple(
        name for name in classes if file.things.get(name)
    )
    expected = msgspec.structs.replace(
        expected,
        classes=classes,
        num_classes=len(classes),
        thing_classes=things,
        task='panoptic',
    )
    facts = CocoFacts(
        split=expected.split, path=path, file=file.coco, things=file.things
    )

    @cache
    def listed() -> Sequence[Sample]:
        samples = []
        for sample, image, name in zip(
            coco_samples(file.coco, path, images, classes),
            file.coco.images.id.tolist(),
            file.coco.images.file_name,
        ):
            own = file.maps.get(image) if names_of_file else None
            own = os.path.join(maps, own or name.replace('.jpg', '.png'))
            samples.append(
                msgspec.structs.replace(
                    sample,
                    mask=own if maps else '',
                    segments=file.segments.get(image, ()),
                )
            )
        return samples

    return SplitSource(
        expected,
        lambda: iter(listed()),
        coco=lambda: facts,
        backend_args=backend_args,
    )
