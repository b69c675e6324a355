"""Each config of labels per pixel: loads, builds, and is evaluated."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.registry import DATASETS
from mmengine.structures import PixelData

import mmext
from mmext.checks.config import apply_data_root, check_data_paths
from mmext.datasets import ShapesSpec, write_shapes_dataset

CONFIGS = (
    'ade20k_semantic',
    'camvid_256x192_semantic',
    'camvid_semantic',
    'cityscapes_semantic',
    'shapes_semantic',
)
FOLDER = Path(mmext.config_path('_base_/datasets/camvid_semantic.py')).parent


def load(name: str, root: Path | None = None) -> Config:
    """A config; with the one thing set that a user sets."""
    cfg = Config.fromfile(FOLDER / f'{name}.py')
    if root is not None:
        cfg.merge_from_dict(dict(data_root=str(root)))
    return apply_data_root(cfg)


def build(cfg: Config, split: str):
    return DATASETS.build(cfg[f'{split}_dataloader'].dataset)


def evaluate(cfg: Config, dataset) -> dict[str, float]:
    """Metrics of a prediction that is the ground truth where it counts."""
    evaluator = Evaluator(cfg.val_evaluator)
    evaluator.dataset_meta = dataset.metainfo
    for index in range(len(dataset)):
        sample = dataset[index]['data_samples']
        label = sample.gt_sem_seg.data
        ignored = label >= len(dataset.metainfo['classes'])
        predicted = label.masked_fill(ignored, 0)
        sample.pred_sem_seg = PixelData(data=predicted)
        evaluator.process([sample.to_dict()])
    return evaluator.evaluate(len(dataset))


def test_every_config_is_tested():
    names = sorted(path.stem for path in FOLDER.glob('*_semantic.py'))
    assert names == list(CONFIGS)


def test_shapes(tmp_path: Path):
    root = tmp_path / 'shapes'
    spec = ShapesSpec(image_size=(96, 64), empty_fraction=0.3)
    write_shapes_dataset(root, spec, num_train=6, num_val=4)
    cfg = load('shapes_semantic', root)
    check_data_paths(cfg)
    train, val = build(cfg, 'train'), build(cfg, 'val')
    assert (len(train), len(val)) == (6, 4)
    for index in range(6):
        packed = train[index]
        assert packed['inputs'].shape == (3, 64, 96)
        sample = packed['data_samples']
        label = sample.gt_sem_seg.data
        edge = sample.gt_edge_map.data
        assert label.shape == edge.shape == (1, 64, 96)
        assert label.max() < 7
        assert bool(edge.any()) == (len(label.unique()) > 1)
    assert evaluate(cfg, val)['mIoU'] == pytest.approx(100)


@pytest.mark.slow
def test_camvid(shared_path):
    root = shared_path('data/camvid')
    cfg = load('camvid_semantic', root)
    check_data_paths(cfg)
    train, val = build(cfg, 'train'), build(cfg, 'val')
    assert (len(train), len(val)) == (367, 101)
    assert train.label_map is None
    values = set()
    for index in range(6):
        packed = train[index]
        assert max(packed['inputs'].shape[1:]) <= 320
        sample = packed['data_samples']
        label, edge = sample.gt_sem_seg.data, sample.gt_edge_map.data
        values |= set(label.unique().tolist())
        assert set(edge.unique().tolist()) == {0, 1}
    assert values <= set(range(12))
    assert 11 in values
    subset = build(
        Config(
            dict(
                val_dataloader=dict(
                    dataset=dict(cfg.val_dataloader.dataset, indices=12)
                )
            )
        ),
        'val',
    )
    metrics = evaluate(cfg, subset)
    # Void counts nowhere.
    assert metrics['mIoU'] == metrics['aAcc'] == pytest.approx(100)


def write_pairs(root: Path, image: str, label: str, values: np.ndarray):
    """A split of one image of 1200 x 600, its labels a gradient."""
    for name, content in (
        (image, np.full((600, 1200, 3), 99, np.uint8)),
        (label, np.tile(values.astype(np.uint8), (600, 1))),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(root / name), content)


@pytest.mark.slow
def test_ade20k(tmp_path: Path):
    values = np.arange(1200) * 151 // 1200  # 0 to 150
    for split in ('training', 'validation'):
        write_pairs(
            tmp_path,
            f'images/{split}/a.jpg',
            f'annotations/{split}/a.png',
            values,
        )
    cfg = load('ade20k_semantic', tmp_path)
    check_data_paths(cfg)
    sample = build(cfg, 'train')[0]['data_samples']
    assert sample.img_shape <= (512, 512)
    label = build(cfg, 'val')[0]['data_samples'].gt_sem_seg.data
    expected = torch.from_numpy(np.where(values == 0, 255, values - 1))
    assert torch.equal(label, expected.expand(1, 600, 1200))


@pytest.mark.slow
def test_cityscapes(tmp_path: Path):
    values = np.arange(1200) % 20
    values[values == 19] = 255
    for split in ('train', 'val'):
        write_pairs(
            tmp_path,
            f'leftImg8bit/{split}/x/a_leftImg8bit.png',
            f'gtFine/{split}/x/a_gtFine_labelTrainIds.png',
            values,
        )
    cfg = load('cityscapes_semantic', tmp_path)
    check_data_paths(cfg)
    sample = build(cfg, 'train')[0]['data_samples']
    assert sample.gt_edge_map.data.shape == sample.gt_sem_seg.data.shape
    packed = build(cfg, 'val')[0]
    assert packed['inputs'].shape == (3, 1024, 2048)
    label = packed['data_samples'].gt_sem_seg.data
    expected = torch.from_numpy(values).expand(1, 600, 1200)
    assert torch.equal(label, expected)
