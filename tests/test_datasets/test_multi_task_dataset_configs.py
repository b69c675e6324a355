"""Each config of several tasks: loads, builds, and is evaluated."""

from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.registry import DATASETS, EVALUATOR
from mmengine.structures import PixelData

import mmext
from mmext.checks.config import apply_data_root, check_data_paths
from mmext.datasets import ScenesSpec, write_scenes_dataset

CONFIGS = ('nyuv2_multi_task', 'scenes_multi_task')
FOLDER = Path(mmext.config_path('_base_/datasets/camvid_semantic.py')).parent


@pytest.fixture(scope='module')
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('data') / 'scenes'
    spec = ScenesSpec(image_size=(64, 48))
    write_scenes_dataset(folder, spec, num_train=3, num_val=2)
    return folder


def load(name: str, root: Path) -> Config:
    """A config; with the one thing set that a user sets."""
    cfg = Config.fromfile(FOLDER / f'{name}.py')
    cfg.merge_from_dict(dict(data_root=str(root)))
    return apply_data_root(cfg)


def test_every_config_is_tested():
    names = sorted(path.stem for path in FOLDER.glob('*_multi_task.py'))
    assert names == list(CONFIGS)


def test_categorical():
    cfg = Config.fromfile(FOLDER / 'generated_categorical.py')
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


@pytest.mark.parametrize('name', CONFIGS)
def test_builds_and_evaluates(name: str, root: Path):
    """A prediction that is the truth is right in all metrics."""
    cfg = load(name, root)
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
    with pytest.raises(FileNotFoundError) as error:
        check_data_paths(load('nyuv2_multi_task', tmp_path / 'none'))
    assert 'make_' not in str(error.value)
