"""The LVIS config trains, and is evaluated, on a tiny LVIS set."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.lvis_set import CLASSES, write_lvis
from helpers.reduce_config import reduce_model
from mmengine import Config

import mmext

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_trains_and_validates(tmp_path):
    write_lvis(tmp_path / 'data', pictures=7)
    cfg = Config.fromfile(
        mmext.config_path('co_dino/co_dino_5scale_r50_8xb2_1x_lvis.py')
    )
    model = reduce_model(cfg.model.to_dict())
    model['num_classes'] = len(CLASSES)
    model['query_head']['loss_cls'].update(
        class_counts=[1, 60, 11, 900], num_sampled=3
    )
    cfg.model = model
    cfg.train_pipeline[3] = cfg.test_pipeline[1]
    cfg.test_pipeline[1].scale = (96, 96)
    leaves = [cfg.train_dataloader.dataset.dataset]
    leaves += [cfg[f'{part}_dataloader'].dataset for part in ('val', 'test')]
    for leaf, steps in zip(leaves, ('train', 'test', 'test')):
        leaf.update(
            ann_file='annotations.json',
            metainfo={'classes': CLASSES},
            pipeline=cfg[f'{steps}_pipeline'],
        )
    cfg.train_dataloader.dataset.oversample_thr = 0.5
    for part in ('val', 'test'):
        cfg[f'{part}_evaluator'].ann_file = 'data/lvis_v1/annotations.json'
    for part in ('train', 'val', 'test'):
        cfg[f'{part}_dataloader'].update(
            num_workers=0, persistent_workers=False
        )
    cfg.dump(str(tmp_path / 'config.py'))
    command = [
        *(sys.executable, str(ROOT / 'tools/train.py')),
        *(str(tmp_path / 'config.py'), '--work-dir', str(tmp_path / 'run')),
        *('--cfg-options', f'data_root={tmp_path / "data"}'),
        *('train_cfg.max_epochs=1', 'default_hooks.logger.interval=1'),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (log,) = (tmp_path / 'run').glob('*/vis_data/scalars.json')
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    # Eight samples of seven pictures: that of the rare class is repeated.
    assert len([row for row in rows if 'loss_cls' in row]) == 4
    assert all(0 <= rows[-1][f'lvis/bbox_AP{kind}'] <= 1 for kind in 'rcf')
