"""ShapesDataset: what the generator wrote comes back through mmdet."""

from pathlib import Path

import numpy as np
import pytest
from mmengine.registry import DATASETS, DefaultScope

from mmext.datasets import (
    SHAPE_CLASSES,
    ShapesSpec,
    draw_sample,
    write_shapes_dataset,
)
from mmext.datasets.generated import ShapesDataset, ShapesSegDataset

SPEC = ShapesSpec(image_size=(64, 48), max_objects=5, empty_fraction=0.3)
COUNT = 10


@pytest.fixture(scope='module')
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('shapes') / 'set'
    write_shapes_dataset(folder, SPEC, num_train=COUNT, num_val=0)
    return folder


def build(root: Path, **changes) -> ShapesDataset:
    """Built the way a config builds it."""
    cfg = dict(
        type='mmext.ShapesDataset',
        _scope_='mmdet',
        data_root=str(root),
        ann_file='annotations/train.json',
        data_prefix=dict(img='img_dir/train/', seg='ann_dir/train/'),
    )
    return DATASETS.build(cfg | changes)


def test_labels_boxes_and_masks_are_those_of_the_generator(root: Path):
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(
            type='mmdet.LoadAnnotations',
            with_bbox=True,
            with_mask=True,
            with_seg=True,
        ),
    ]
    dataset = build(root, pipeline=pipeline)
    for index in range(COUNT):
        sample = draw_sample(SPEC, split=0, index=index)
        loaded = dataset[index]
        np.testing.assert_array_equal(
            loaded['gt_bboxes_labels'], sample.labels
        )
        x, y, w, h = sample.boxes.T
        boxes = loaded['gt_bboxes'].tensor.numpy().reshape(-1, 4)
        np.testing.assert_array_equal(boxes, np.stack([x, y, x + w, y + h], 1))
        masks = loaded['gt_masks'].masks.astype(bool)
        np.testing.assert_array_equal(masks, sample.masks)
        np.testing.assert_array_equal(
            loaded['gt_seg_map'], sample.semantic_map()
        )
        # JPEG blurs colours between neighbours, no more.
        error = np.abs(loaded['img'].astype(int) - sample.image.astype(int))
        assert error.mean() < 12


def build_seg(root: Path, **changes) -> ShapesSegDataset:
    """Built the way a config builds it."""
    cfg = dict(
        type='mmext.ShapesSegDataset',
        _scope_='mmseg',
        data_root=str(root),
        data_prefix=dict(
            img_path='img_dir/train/', seg_map_path='ann_dir/train/'
        ),
    )
    return DATASETS.build(cfg | changes)


@pytest.mark.parametrize(
    ('kind', 'build'),
    [(ShapesDataset, build), (ShapesSegDataset, build_seg)],
)
@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmext'])
def test_builds_from_registry(root: Path, scope: str, kind, build):
    with DefaultScope.overwrite_default_scope(scope):
        dataset = build(root)
    assert isinstance(dataset, kind)
    assert len(dataset) == COUNT
    metainfo = kind.METAINFO
    assert metainfo['classes'][-6:] == SHAPE_CLASSES
    assert len(set(metainfo['palette'])) == len(metainfo['classes'])
