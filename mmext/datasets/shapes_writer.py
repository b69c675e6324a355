"""Write a generated data set: COCO and semantic labels, all or nothing.

Layout below the folder of the set, for ``split`` in ``train`` and ``val``::

    annotations/<split>.json     COCO: boxes and compressed RLE masks
    img_dir/<split>/000001.jpg   pictures
    ann_dir/<split>/000001.png   class per pixel, 0 is the ground
    shapes_dataset.json          the settings; marks the folder as ours

The category of shape class ``i`` has id ``i + 1``, which is also its value in
the PNG files.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import cv2
import numpy as np

from .dataset_folder import check_counts, new_dataset_folder
from .shapes_generator import (
    SHAPE_CLASSES,
    ShapesSample,
    ShapesSpec,
    draw_sample,
)

_VERSION = '1'  # to be raised when the same settings give other pictures
_MARKER = 'shapes_dataset.json'
_SPLITS = ('train', 'val')
_LICENSE = {
    'id': 1,
    'name': 'CC0 1.0 Universal',
    'url': 'https://creativecommons.org/publicdomain/zero/1.0/',
}
_JPEG_QUALITY = 95


def coco_annotations(
    sample: ShapesSample, *, image_id: int, first_id: int
) -> list[dict]:
    """One COCO annotation per shape, with its box in pixels and its RLE.

    Ids count from ``first_id``, at least 1: pycocotools takes 0 for "no
    match".
    """
    # Training imports this package, and needs no pycocotools.
    from pycocotools import mask as mask_utils

    stacked = np.asfortranarray(sample.masks.transpose(1, 2, 0), np.uint8)
    encoded = mask_utils.encode(stacked)
    return [
        {
            'id': first_id + i,
            'image_id': image_id,
            'category_id': int(sample.labels[i]) + 1,
            'bbox': sample.boxes[i].tolist(),
            'area': int(mask_utils.area(rle)),
            'segmentation': {
                'size': rle['size'],
                'counts': rle['counts'].decode(),
            },
            'iscrowd': 0,
        }
        for i, rle in enumerate(encoded)
    ]


def _settings(spec: ShapesSpec, counts: dict[str, int]) -> dict:
    return {
        'generator': 'mmext.datasets.write_shapes_dataset',
        'version': _VERSION,
        'classes': list(SHAPE_CLASSES),
        'counts': counts,
        **asdict(spec),
    }


def _write_split(
    root: Path,
    split: str,
    spec: ShapesSpec,
    count: int,
    on_image: Callable[[], None],
) -> dict:
    """Write one split below ``root``; returns its COCO content."""
    img_dir, ann_dir = root / 'img_dir' / split, root / 'ann_dir' / split
    img_dir.mkdir(parents=True)
    ann_dir.mkdir(parents=True)
    width, height = spec.image_size
    images: list[dict] = []
    annotations: list[dict] = []
    for index in range(count):
        sample = draw_sample(spec, split=_SPLITS.index(split), index=index)
        name = f'{index + 1:06d}'
        quality = (cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY)
        for folder, suffix, picture, options in (
            (img_dir, '.jpg', sample.image, quality),
            (ann_dir, '.png', sample.semantic_map(), ()),
        ):
            _, data = cv2.imencode(suffix, picture, options)
            (folder / f'{name}{suffix}').write_bytes(data.tobytes())
        images.append(
            {
                'id': index + 1,
                'file_name': f'{name}.jpg',
                'width': width,
                'height': height,
                'license': _LICENSE['id'],
            }
        )
        annotations += coco_annotations(
            sample, image_id=index + 1, first_id=len(annotations) + 1
        )
        on_image()
    return {
        # No date: equal settings give equal bytes.
        'info': {
            'description': f'Generated pictures of shapes, {split} split',
            'version': _VERSION,
            'contributor': 'mmext',
            'settings': _settings(spec, {split: len(images)}),
        },
        'licenses': [_LICENSE],
        'images': images,
        'annotations': annotations,
        'categories': [
            {'id': i + 1, 'name': name, 'supercategory': 'shape'}
            for i, name in enumerate(SHAPE_CLASSES)
        ],
    }


def write_shapes_dataset(
    out: str | os.PathLike,
    spec: ShapesSpec,
    *,
    num_train: int,
    num_val: int,
    overwrite: bool = False,
    on_image: Callable[[], None] | None = None,
) -> dict[str, dict[str, int]]:
    """Generate a data set on disk, completely or not at all.

    After an error ``out`` is what it was; ``kill -9`` leaves a hidden folder
    next to it.

    Args:
        out: Folder of the set. Missing parents are made.
        spec: Settings of the pictures.
        num_train: Number of training pictures; 0 leaves the split out.
        num_val: Number of validation pictures; 0 leaves the split out.
        overwrite: Replace a set that was generated earlier.
        on_image: Called after each picture, for a progress bar.

    Returns:
        For each split the number of ``'images'``, of ``'objects'``, and of
        objects of each class.

    Raises:
        ValueError: If a count is negative or both are 0, or if the shapes
            find no room.
        FileExistsError: If ``out`` is a file, or holds files and
            ``overwrite`` is off, or holds files that are not a generated
            set.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = write_shapes_dataset(
        ...         folder, ShapesSpec(), num_train=2, num_val=1
        ...     )
        >>> result['train']['images'], result['val']['images']
        (2, 1)
    """
    counts = check_counts(num_train, num_val)
    report = {}
    with new_dataset_folder(out, _MARKER, overwrite=overwrite) as new:
        (new / 'annotations').mkdir()
        for split in (name for name in _SPLITS if counts[name]):
            content = _write_split(
                new, split, spec, counts[split], on_image or (lambda: None)
            )
            (new / 'annotations' / f'{split}.json').write_text(
                json.dumps(content), encoding='utf-8'
            )
            labels = [
                note['category_id'] - 1 for note in content['annotations']
            ]
            report[split] = {
                'images': len(content['images']),
                'objects': len(labels),
                **{
                    name: labels.count(label)
                    for label, name in enumerate(SHAPE_CLASSES)
                },
            }
        (new / _MARKER).write_text(
            json.dumps(_settings(spec, counts)), encoding='utf-8'
        )
    return report
