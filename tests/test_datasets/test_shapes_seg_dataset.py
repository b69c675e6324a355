"""ShapesSegDataset: what the generator wrote comes back through mmseg."""

from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope

from mmext.datasets import (
    SHAPE_CLASSES,
    ShapesSpec,
    check_data_paths,
    draw_sample,
    write_shapes_dataset,
)
from mmext.datasets.shapes_seg_dataset import ShapesSegDataset

SPEC = ShapesSpec(image_size=(64, 48), max_objects=5, empty_fraction=0.3)
COUNT = 10


@pytest.fixture(scope='module')
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('shapes') / 'set'
    write_shapes_dataset(folder, SPEC, num_train=COUNT, num_val=0)
    return folder


def build(root: Path, **changes) -> ShapesSegDataset:
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


def test_classes_and_palette():
    classes = ShapesSegDataset.METAINFO['classes']
    assert classes == ('ground', *SHAPE_CLASSES)
    assert len(set(ShapesSegDataset.METAINFO['palette'])) == len(classes)


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmext'])
def test_builds_from_registry(root: Path, scope: str):
    with DefaultScope.overwrite_default_scope(scope):
        dataset = build(root)
    assert isinstance(dataset, ShapesSegDataset)
    assert len(dataset) == COUNT


def test_labels_are_those_of_the_generator(root: Path):
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='mmseg.LoadAnnotations'),
    ]
    dataset = build(root, pipeline=pipeline)
    seen = set()
    for index in range(COUNT):
        sample = draw_sample(SPEC, split=0, index=index)
        loaded = dataset[index]['gt_seg_map']
        np.testing.assert_array_equal(loaded, sample.semantic_map())
        for label, mask in zip(sample.labels, sample.masks):
            assert (loaded[mask] == label + 1).all()
        seen |= set(np.unique(loaded))
    assert seen <= set(range(7))
    assert len(seen) > 4


def test_missing_data_says_how_to_make_it(tmp_path: Path):
    dataset = dict(
        type='mmext.ShapesSegDataset',
        data_root=str(tmp_path / 'none'),
        data_prefix=dict(img_path='img_dir/train/'),
    )
    cfg = Config(dict(train_dataloader=dict(dataset=dataset)))
    with pytest.raises(FileNotFoundError, match=r'make_shapes_dataset\.py'):
        check_data_paths(cfg)
