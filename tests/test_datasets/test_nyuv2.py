"""Data sets in NYUv2's layout: files, order, classes, errors."""

from pathlib import Path

import numpy as np
import pytest
from mmengine.registry import DATASETS, DefaultScope

from mmext.datasets import (
    NYUV2_CLASSES,
    SCENE_CLASSES,
    ScenesSpec,
    classes_of_layout,
    draw_scene,
    is_layout,
    layout_files,
    write_scenes_dataset,
)
from mmext.datasets.nyuv2 import (
    ScenesMultiTaskDataset,
)

SPEC = ScenesSpec(image_size=(32, 24))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / 'set'
    write_scenes_dataset(folder, SPEC, num_train=12, num_val=2)
    return folder


def build(root: Path, kind: str = 'ScenesMultiTaskDataset', **more):
    cfg = dict(type=f'mmext.{kind}', _scope_='mmseg', data_root=str(root))
    return DATASETS.build(cfg | more)


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmext'])
def test_builds_from_registry(root: Path, scope: str):
    with DefaultScope.overwrite_default_scope(scope):
        dataset = build(root, data_prefix=dict(split='val/'))
    assert isinstance(dataset, ScenesMultiTaskDataset)
    assert len(dataset) == 2
    assert dataset.metainfo['classes'] == SCENE_CLASSES


def test_samples_are_those_of_the_generator_in_order(root: Path):
    pipeline = [dict(type='mmext.LoadMultiTaskAnnotations', _scope_='mmseg')]
    dataset = build(root, pipeline=pipeline)
    assert len(dataset) == 12
    for index in (0, 2, 11):
        scene = draw_scene(SPEC, split=0, index=index)
        loaded = dataset[index]
        assert Path(loaded['img_path']).name == f'{index}.npy'
        np.testing.assert_array_equal(loaded['gt_depth'], scene.depth[..., 0])
        np.testing.assert_array_equal(loaded['gt_normal'], scene.normal)


def test_missing_files_are_listed(root: Path):
    for index in range(3, 10):
        (root / f'train/depth/{index}.npy').unlink()
    with pytest.raises(FileNotFoundError, match='7 missing') as error:
        build(root, kind='NYUv2MultiTaskDataset')
    text = str(error.value)
    assert str(root / 'train' / 'depth' / '3.npy') in text
    assert 'and 2 more' in text


def test_missing_folders_are_named(root: Path):
    with pytest.raises(FileNotFoundError, match='without image, label, dep'):
        build(root, data_prefix=dict(split='test'))
    (root / 'val' / 'normal').rename(root / 'val' / 'normals')
    with pytest.raises(FileNotFoundError, match='without normal; see data_r'):
        build(root, data_prefix=dict(split='val'))


def test_no_sample_and_no_split(tmp_path: Path):
    for name in ('image', 'label', 'depth', 'normal'):
        (tmp_path / 'train' / name).mkdir(parents=True)
    with pytest.raises(ValueError, match='must have samples'):
        build(tmp_path)
    with pytest.raises(ValueError, match="must have the key 'split'"):
        build(tmp_path, data_prefix=dict(img_path='train'))


def test_layout(root: Path, tmp_path: Path):
    assert is_layout(root)
    assert not is_layout(tmp_path)
    assert classes_of_layout(root) == SCENE_CLASSES
    assert classes_of_layout(tmp_path) == NYUV2_CLASSES
    (root / 'train/label/extra.npy').touch()
    files = layout_files(root / 'train')
    assert [Path(file['image']).stem for file in files] == [
        'extra',
        *map(str, range(12)),
    ]
