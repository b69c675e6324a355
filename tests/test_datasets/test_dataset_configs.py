"""Each config of a data set: loads, builds, and is evaluated."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.evaluator import Evaluator
from mmengine.registry import DATASETS, EVALUATOR
from mmengine.structures import InstanceData, PixelData

import mmext
from mmext.checks.config import apply_data_root, check_data_paths
from mmext.datasets import (
    SHAPE_CLASSES,
    ScenesSpec,
    ShapesSpec,
    write_scenes_dataset,
    write_shapes_dataset,
)

CONFIGS = (
    'ade20k_semantic',
    'bccd_detection',
    'bccd_detection_320',
    'camvid_256x192_semantic',
    'camvid_semantic',
    'cityscapes_semantic',
    'coco_detection',
    'coco_detection_2048',
    'coco_detection_2400',
    'coco_instance',
    'coco_instance_2400',
    'coco_instance_lsj',
    'coco_instance_lsj_1280',
    'generated_categorical',
    # In test_lvis_tools.py, and the step of the config in test_configs.py.
    'lvis_v1',
    'lvis_v1_detection',
    'lvis_v1_instance_lsj',
    'lvis_v1_instance_lsj_1280',
    'lvis_v1_instance_lsj_1536',
    'nyuv2_multi_task',
    'scenes_multi_task',
    'shapes_detection',
    'shapes_instance',
    'shapes_semantic',
)


def load(name: str, root: Path) -> Config:
    """A config; with the one thing set that a user sets."""
    cfg = Config.fromfile(mmext.config_path(f'_base_/datasets/{name}.py'))
    cfg.merge_from_dict(dict(data_root=str(root)))
    return apply_data_root(cfg)


@pytest.fixture(scope='module')
def shapes(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('data') / 'shapes'
    spec = ShapesSpec(image_size=(96, 64), empty_fraction=0.3)
    write_shapes_dataset(folder, spec, num_train=12, num_val=6)
    return folder


@pytest.fixture(scope='module')
def coco(tmp_path_factory, shapes: Path) -> Path:
    """The generated set in COCO's layout."""
    folder = tmp_path_factory.mktemp('data') / 'coco'
    (folder / 'annotations').mkdir(parents=True)
    for split in ('train', 'val'):
        shutil.copy(
            shapes / f'annotations/{split}.json',
            folder / f'annotations/instances_{split}2017.json',
        )
        (folder / f'{split}2017').symlink_to(shapes / f'img_dir/{split}')
    return folder


def coco_config(name: str, coco: Path) -> Config:
    cfg = load(name, coco)
    check_data_paths(cfg)
    # The pictures are not COCO's; all else is.
    train = cfg.train_dataloader.dataset
    for dataset in (train.get('dataset', train), cfg.val_dataloader.dataset):
        dataset.metainfo = dict(classes=SHAPE_CLASSES)
    return cfg


def perfect(sample) -> None:
    """Predict the ground truth, in the original picture."""
    instances = sample.gt_instances
    sample.pred_instances = InstanceData(
        bboxes=instances.bboxes.tensor,
        labels=instances.labels,
        scores=torch.ones(len(instances)),
    )


def evaluate(cfg: Config, dataset) -> dict[str, float]:
    evaluator = Evaluator(cfg.val_evaluator)
    evaluator.dataset_meta = dataset.metainfo
    for index in range(len(dataset)):
        sample = dataset[index]['data_samples']
        perfect(sample)
        evaluator.process([sample])
    return evaluator.evaluate(len(dataset))


def test_every_config_is_tested():
    folder = Path(mmext.config_path(f'_base_/datasets/{CONFIGS[0]}.py')).parent
    names = sorted(path.stem for path in folder.glob('*.py'))
    # Those of pictures without labels: test_unlabelled.py.
    assert [n for n in names if not n.endswith('pictures')] == list(CONFIGS)


def test_shapes(shapes: Path):
    cfg = load('shapes_detection', shapes)
    check_data_paths(cfg)
    train = DATASETS.build(cfg.train_dataloader.dataset)
    val = DATASETS.build(cfg.val_dataloader.dataset)
    assert (len(train), len(val)) == (12, 6)
    empty = 0
    for index in range(12):
        packed = train[index]
        assert packed['inputs'].shape == (3, 64, 96)
        assert packed['inputs'].dtype == torch.uint8
        sample = packed['data_samples']
        assert sample.scale_factor == (1.0, 1.0)
        boxes = sample.gt_instances.bboxes.tensor
        assert boxes.shape == (len(sample.gt_instances.labels), 4)
        assert ((boxes[:, 2:] - boxes[:, :2]) >= 4).all()
        empty += len(boxes) == 0
    assert empty > 0
    assert evaluate(cfg, val)['coco/bbox_mAP'] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ('name', 'heights', 'size'),
    [
        ('bccd_detection', range(384, 577, 32), (480, 640)),
        pytest.param(
            'bccd_detection_320',
            range(192, 289, 24),
            (240, 320),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_bccd(shared_path, name: str, heights, size):
    root = shared_path('data/bccd')
    cfg = load(name, root)
    check_data_paths(cfg)
    train = DATASETS.build(cfg.train_dataloader.dataset)
    val = DATASETS.build(cfg.val_dataloader.dataset)
    assert (len(train), len(val)) == (205, 87)
    for index in range(8):
        packed = train[index]
        assert packed['inputs'].shape[1] in heights
        labels = packed['data_samples'].gt_instances.labels
        assert set(labels.tolist()) <= {0, 1, 2}
    assert val[0]['inputs'].shape == (3, *size)
    assert not cfg.val_evaluator.get('ann_file')
    assert evaluate(cfg, val)['coco/bbox_mAP'] == pytest.approx(1.0)


@pytest.mark.slow
def test_bccd_labels_are_those_of_the_files(shared_path):
    """Counted in the XML files by hand: two boxes are points."""
    root = shared_path('data/bccd')
    cfg = load('bccd_detection', root)
    counts = np.zeros(3, dtype=int)
    ignored = 0
    for split in ('train', 'val'):
        dataset = DATASETS.build(cfg[f'{split}_dataloader'].dataset)
        for index in range(len(dataset)):
            for instance in dataset.get_data_info(index)['instances']:
                counts[instance['bbox_label']] += 1
                ignored += instance['ignore_flag']
    assert counts.tolist() == [3350, 301, 292]
    assert ignored == 2


@pytest.mark.parametrize(
    ('name', 'short', 'long'),
    [
        ('coco_detection', 800, 1333),
        pytest.param(
            'coco_detection_2048', 1536, 2048, marks=pytest.mark.slow
        ),
        pytest.param(
            'coco_detection_2400', 1536, 2400, marks=pytest.mark.slow
        ),
    ],
)
def test_coco_detection(coco: Path, name: str, short: int, long: int):
    cfg = coco_config(name, coco)
    train = DATASETS.build(cfg.train_dataloader.dataset)
    assert len(train) == 12
    sizes = set()
    for index in range(6):
        packed = train[index]
        height, width = packed['inputs'].shape[1:]
        sizes.add((height, width))
        assert min(height, width) <= short
        assert max(height, width) <= long
        sample = packed['data_samples']
        assert sample.img_shape == (height, width)
        boxes = sample.gt_instances.bboxes.tensor
        assert (boxes[:, 0::2] <= width).all()
        assert (boxes[:, 1::2] <= height).all()
    assert len(sizes) > 3
    val = DATASETS.build(cfg.val_dataloader.dataset)
    assert evaluate(cfg, val)['coco/bbox_mAP'] == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'size'),
    [('coco_instance_lsj', 1024), ('coco_instance_lsj_1280', 1280)],
)
def test_coco_instance_lsj(coco: Path, name: str, size: int):
    cfg = coco_config(name, coco)
    train = DATASETS.build(cfg.train_dataloader.dataset)
    pasted = 0
    for index in range(6):
        packed = train[index]
        assert packed['inputs'].shape == (3, size, size)
        sample = packed['data_samples']
        assert sample.img_shape == (size, size)
        instances = sample.gt_instances
        before = train.dataset.get_data_info(index)['instances']
        pasted += len(instances) > len(before)
        for box, mask in zip(instances.bboxes.tensor, instances.masks.masks):
            ys, xs = np.nonzero(mask)
            # Each side is recomputed from the mask, or else is that of a
            # box that the crop or the paste left as it was.
            assert box[0] - 2 <= xs.min() <= xs.max() <= box[2] + 2
            assert box[1] - 2 <= ys.min() <= ys.max() <= box[3] + 2
    assert pasted > 0
    val = DATASETS.build(cfg.val_dataloader.dataset)
    packed = pseudo_collate([val[0]])
    assert packed['inputs'][0].shape == (3, size, size)
    assert evaluate(cfg, val)['coco/bbox_mAP'] == pytest.approx(1.0)


@pytest.mark.slow
def test_lsj_survives_pictures_without_objects(coco: Path, tmp_path: Path):
    path = tmp_path / 'coco'
    shutil.copytree(coco, path, symlinks=True)
    file = path / 'annotations/instances_train2017.json'
    content = json.loads(file.read_text())
    kept = content['images'][0]['id']
    content['annotations'] = [
        item for item in content['annotations'] if item['image_id'] == kept
    ]
    file.write_text(json.dumps(content))
    cfg = coco_config('coco_instance_lsj', path)
    train = DATASETS.build(cfg.train_dataloader.dataset)
    counts = [
        len(train[index % 12]['data_samples'].gt_instances)
        for index in range(12)
    ]
    assert 0 in counts


def build(cfg: Config, split: str):
    return DATASETS.build(cfg[f'{split}_dataloader'].dataset)


def evaluate_maps(cfg: Config, dataset) -> dict[str, float]:
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


def test_shapes_semantic(shapes: Path):
    cfg = load('shapes_semantic', shapes)
    check_data_paths(cfg)
    train, val = build(cfg, 'train'), build(cfg, 'val')
    assert (len(train), len(val)) == (12, 6)
    for index in range(6):
        packed = train[index]
        assert packed['inputs'].shape == (3, 64, 96)
        sample = packed['data_samples']
        label = sample.gt_sem_seg.data
        edge = sample.gt_edge_map.data
        assert label.shape == edge.shape == (1, 64, 96)
        assert label.max() < 7
        assert bool(edge.any()) == (len(label.unique()) > 1)
    assert evaluate_maps(cfg, val)['mIoU'] == pytest.approx(100)


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
    metrics = evaluate_maps(cfg, subset)
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


@pytest.fixture(scope='module')
def scenes(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('data') / 'scenes'
    spec = ScenesSpec(image_size=(64, 48))
    write_scenes_dataset(folder, spec, num_train=3, num_val=2)
    return folder


def test_categorical():
    name = '_base_/datasets/generated_categorical.py'
    cfg = Config.fromfile(mmext.config_path(name))
    cfg.val_dataloader.dataset.num_samples = 20
    dataset = DATASETS.build(cfg.val_dataloader.dataset)
    evaluator = Evaluator(cfg.val_evaluator)
    for index in range(len(dataset)):
        sample = dataset[index]['data_samples']
        for name in ('income', 'married', 'hours'):
            truth = sample.get(f'gt_{name}')
            sample.set_data({f'pred_{name}': truth.clone()})
        evaluator.process([sample])
    assert evaluator.evaluate(20) == {
        'income/accuracy': 100,
        'married/accuracy': 100,
        'hours/mae': 0,
        'hours/rmse': 0,
    }


@pytest.mark.parametrize('name', ['nyuv2_multi_task', 'scenes_multi_task'])
def test_multi_task(name: str, scenes: Path):
    """A prediction that is the truth is right in all metrics."""
    cfg = load(name, scenes)
    check_data_paths(cfg)
    train = DATASETS.build(cfg.train_dataloader.dataset)
    inputs = train[1]['inputs']
    assert len(train) == 3
    assert inputs.shape[0] == 3
    assert inputs.shape[1:] == train[1]['data_samples'].gt_normal.shape
    val = DATASETS.build(cfg.val_dataloader.dataset)
    evaluator = EVALUATOR.build(cfg.val_evaluator)
    evaluator.dataset_meta = val.metainfo
    for index in range(len(val)):
        sample = val[index]['data_samples']
        label = sample.gt_sem_seg.data
        fields = {
            'pred_sem_seg': label.masked_fill(label == 255, 0),
            # Wrong where nothing is known: that must not count.
            'pred_depth': sample.gt_depth.data.clamp(min=1e-9) * 2,
            'pred_normal': sample.gt_normal.data * 3,
        }
        for field, data in fields.items():
            sample.set_data({field: PixelData(data=data)})
        evaluator.process([sample])
    metrics = evaluator.evaluate(len(val))
    assert metrics['semantic/aAcc'] == metrics['semantic/mIoU'] == 100
    assert metrics['depth/rel_err'] == pytest.approx(1)
    assert metrics['normal/mean'] == pytest.approx(0, abs=1e-4)
    assert metrics['normal/within_11.25'] == 100
    assert not np.isnan(list(metrics.values())).any()


def test_missing_data_says_how_to_make_it(tmp_path: Path):
    cfg = load('scenes_multi_task', tmp_path / 'none')
    with pytest.raises(FileNotFoundError, match=r'make_scenes_dataset\.py'):
        check_data_paths(cfg)
    cfg = load('shapes_semantic', tmp_path / 'none')
    with pytest.raises(FileNotFoundError, match=r'make_shapes_dataset\.py'):
        check_data_paths(cfg)
    with pytest.raises(FileNotFoundError) as error:
        check_data_paths(load('nyuv2_multi_task', tmp_path / 'none'))
    assert 'make_' not in str(error.value)
