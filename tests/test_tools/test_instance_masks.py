"""Masks of CO-DINO through the tools: trained, tested and drawn."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.label_sets import clean
from helpers.reduce_config import reduce_model
from helpers.toy_ranks import load_tool, start_ranks
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, DefaultScope
from PIL import Image
from pycocotools import mask as coco_mask

import mmext
from mmext.datasets import ShapesSpec, write_shapes_dataset

pytestmark = [pytest.mark.xdist_group('processes'), pytest.mark.slow]
CONFIG = 'co_dino/co_dino_r18_shapes_instance.py'


@pytest.fixture
def location(tmp_path) -> Path:
    """Data, config, and a checkpoint of a small model with random weights."""
    spec = ShapesSpec(image_size=(160, 96), empty_fraction=0.0)
    write_shapes_dataset(tmp_path / 'data', spec, num_train=2, num_val=3)
    cfg = Config.fromfile(mmext.config_path(CONFIG))
    cfg.model = reduce_model(cfg.to_dict()['model'])
    cfg.merge_from_dict(
        {
            'data_root': f'{tmp_path}/data/',
            'train_cfg': {'max_epochs': 1, 'val_interval': 1},
            'work_dir': f'{tmp_path}/w',
        }
    )
    cfg.dump(tmp_path / 'small.py')
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg.to_dict()['model'])
    model.init_weights()
    torch.save(model.state_dict(), tmp_path / 'random.pth')
    return tmp_path


def run(tool: str, folder: Path, *args, seconds: int = 240) -> str:
    """Output of a tool that succeeds."""
    argv = [*args, '--device', 'cpu']
    ranks = start_ranks(argv, 1, folder / 'out', tool=tool)
    assert ranks.wait(seconds) == [0], ranks.output()[-3000:]
    return ranks.output()


def test_trains_tests_and_draws(location):
    config = location / 'small.py'
    output = run('train', location, config)
    metrics = re.findall(r'coco/(\w+_mAP): (-?[\d.]+)', output)
    assert {name for name, _ in metrics} == {'bbox_mAP', 'segm_mAP'}
    output = run('test', location, config, location / 'w/epoch_1.pth')
    assert 'coco/segm_mAP_50' in output
    args = ['--config', config, '--checkpoint', location / 'random.pth']
    args += ['--from-val', '3', '--with-gt', '--out', location / 'drawn']
    args += ['--score-thr', '0', '--device', 'cpu']
    assert load_tool('infer').main([str(arg) for arg in args]) == 0
    content = json.loads((location / 'drawn/predictions.json').read_text())
    for row in content['images']:
        assert len(row['masks']) == len(row['boxes']) > 0
        masks = coco_mask.decode(row['masks'])
        assert masks.shape == (96, 160, len(row['boxes']))
        # Each lies in its box, but for the pixel that the edge cuts.
        for mask, (x1, y1, x2, y2) in zip(
            masks.transpose(2, 0, 1), row['boxes']
        ):
            down, right = np.nonzero(mask)
            assert ((x1 - 1 <= right) & (right <= x2 + 1)).all()
            assert ((y1 - 1 <= down) & (down <= y2 + 1)).all()
    assert Image.open(content['images'][0]['picture']).size[0] > 640


def test_an_object_without_a_mask_is_an_error_of_all_checks(
    tmp_path, monkeypatch, capsys
):
    """As Label Studio and others write objects that have a box alone."""
    monkeypatch.chdir(tmp_path)
    train = clean('coco', tmp_path / 'data').annotation()
    content = json.loads(train.read_text())
    content['annotations'][4]['segmentation'] = []
    train.write_text(json.dumps(content))
    new = ['data', '--base', f'mmext::{CONFIG}', '--out', 'my.py']
    check = ['my.py', '--workers', '1']
    for tool, argv in (
        ('new_config', new),
        ('preflight', ['my.py', '--batches', 'normal']),
        ('validate_labels', [*check, '--fix', 'all']),
    ):
        assert load_tool(tool).main(argv) == 1
        assert 'error COCO016' in capsys.readouterr().out
    dataset = Config.fromfile('my.py').train_dataloader.dataset
    dataset.lazy_init = False
    scope = DefaultScope.overwrite_default_scope('mmdet')
    with scope, pytest.raises(KeyError, match='mask'):
        DATASETS.build(dataset)[1]
    assert Path('all/train.json').read_bytes() == train.read_bytes()


@pytest.mark.exhaustive
def test_masks_are_learned(tmp_path):
    """Minutes of a CPU."""
    spec = ShapesSpec(
        image_size=(96, 96), max_objects=3, hue_by_class=1.0, seed=1
    )
    write_shapes_dataset(tmp_path / 'data', spec, num_train=240, num_val=40)
    output = run(
        'train',
        tmp_path,
        mmext.config_path(CONFIG),
        *('--work-dir', tmp_path / 'w', '--cfg-options'),
        f'data_root={tmp_path}/data/',
        *('train_cfg.max_epochs=4', 'train_cfg.val_interval=2'),
        *('param_scheduler.1.end=4', 'param_scheduler.1.T_max=4'),
        'randomness.seed=0',
        seconds=590,
    )
    matches = re.findall(r'coco/segm_mAP_50: ([\d.]+)', output)
    first, last = map(float, matches)
    assert first < last
    assert last > 0.3
