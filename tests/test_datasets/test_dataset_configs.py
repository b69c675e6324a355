"""Each config of boxes: loads, builds, and is evaluated."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.evaluator import Evaluator
from mmengine.registry import DATASETS
from mmengine.structures import InstanceData

import mmext
from mmext.checks.config import apply_data_root, check_data_paths
from mmext.datasets import SHAPE_CLASSES, ShapesSpec, write_shapes_dataset

CONFIGS = (
    'bccd_detection',
    'bccd_detection_320',
    'coco_detection',
    'coco_detection_2048',
    'coco_instance',
    'coco_instance_lsj',
    'coco_instance_lsj_1280',
    'shapes_detection',
    'shapes_instance',
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
    # Those with a class per pixel: test_semantic_dataset_configs.py; of
    # several tasks: test_multi_task_dataset_configs.py; those without
    # labels: test_unlabelled.py.
    others = ('_semantic', '_multi_task', '_categorical', 'pictures')
    assert [n for n in names if not n.endswith(others)] == list(CONFIGS)


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
