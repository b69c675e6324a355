"""Checkpoints in the layouts of public ones are read without trust.

With the content and the types that the projects document and write: MMCV 1
(mmdet 2, mmseg 0.x, the original CO-DETR), MMEngine (mmdet 3, mmseg 1), and
bare ones of DETR and torchvision.
"""

import argparse
from collections import OrderedDict

import numpy as np
import pytest
import torch
from helpers import toy_training as toy
from helpers.toy_ranks import start_ranks
from mmengine.config import Config, ConfigDict
from mmengine.logging import HistoryBuffer

pytestmark = pytest.mark.xdist_group('processes')

COCO = ('person', 'bicycle', 'car')
TRAINING = toy.config(param_scheduler=[], custom_hooks=[dict(type='EMAHook')])


def state_dict():
    state = OrderedDict(
        [
            ('linear.weight', torch.zeros(2, 3)),
            ('linear.bias', torch.full((2,), 3.0)),
        ]
    )
    state._metadata = OrderedDict(
        [('', dict(version=1)), ('linear', dict(version=1))]
    )
    return state


def optimizer():
    shapes = (2, 3), (2,)
    state = {
        index: dict(
            step=torch.tensor(36.0),
            exp_avg=torch.zeros(shape),
            exp_avg_sq=torch.zeros(shape),
        )
        for index, shape in enumerate(shapes)
    }
    rates = dict(lr=np.float64(2e-4) * 0.1, initial_lr=2e-4)
    rates |= dict(betas=(0.9, 0.999), eps=1e-8, amsgrad=False)
    groups = [dict(rates, params=[index]) for index in range(2)]
    return dict(state=state, param_groups=groups)


def mmcv(**more):
    """mmcv.runner.save_checkpoint with the meta of mmdet 2 or mmseg 0.x."""
    meta = dict(
        env_info='sys.platform: linux\nPython: 3.7.3 (default)\n',
        config="checkpoint_config = dict(interval=1)\nmodel = dict(type='A')",
        seed=0,
        epoch=12,
        iter=36,
        mmcv_version='1.5.0',
        time='Fri Nov 18 14:12:00 2022',
        CLASSES=COCO,
        PALETTE=[(220, 20, 60), (119, 11, 32), (0, 0, 142)],
        hook_msgs=dict(
            last_ckpt='work_dirs/co_dino/epoch_12.pth',
            best_score=np.float64(0.521),
        ),
        **more,
    )
    return dict(meta=meta, state_dict=state_dict(), optimizer=optimizer())


def mmseg_0():
    return mmcv(PALETTE_ARRAY=np.array([[128, 64, 128]], dtype=np.uint8))


def mmengine(**more):
    """mmengine's Runner.save_checkpoint, as mmdet 3 and mmseg 1 write."""
    scalars = OrderedDict()
    for name in ('train/lr', 'train/loss', 'coco/bbox_mAP'):
        scalars[name] = HistoryBuffer([0.5, 0.25], [1, 1])
        scalars[name].mean()
    meta = dict(
        epoch=1,
        iter=6,
        cfg=Config(TRAINING).pretty_text,
        seed=928157442,
        experiment_name='co_dino_5scale_r50_lsj_8xb2_1x_coco_20230905',
        time='20230905_141500',
        mmengine_version='0.8.4',
        dataset_meta=dict(
            CLASSES=COCO,
            PALETTE=[(220, 20, 60)],
            classes=ConfigDict(names=list(COCO)),
        ),
    )
    info = OrderedDict(cfg='', seed=928157442, epoch=0, iter=5, max_iters=18)
    info |= dict(
        loop_stage='train',
        last_ckpt='work_dirs/co_dino/epoch_1.pth',
        best_score=np.float32(0.5),
        keep_ckpt_ids=[1],
        eta=np.float64(12.5),
        is_done=np.bool_(False),
    )
    hub = dict(log_scalars=scalars, runtime_info=info)
    hub['resumed_keys'] = OrderedDict([('train/lr', True)])
    state = state_dict()
    return dict(meta=meta, state_dict=state, message_hub=hub, **more)


def mmengine_to_resume():
    """With what a training goes on from, also of MMEngine's EMA hook."""
    momenta = {
        index: dict(momentum_buffer=torch.zeros(shape))
        for index, shape in enumerate([(2, 3), (2,)])
    }
    group = dict(
        lr=0.05,
        momentum=0.9,
        dampening=0,
        weight_decay=0,
        nesterov=False,
        maximize=False,
        foreach=None,
        differentiable=False,
        params=[0, 1],
    )
    return mmengine(
        optimizer=dict(state=momenta, param_groups=[group]),
        param_schedulers=[],
        ema_state_dict=OrderedDict(
            [('steps', torch.tensor(6))]
            + [(f'module.{k}', v) for k, v in state_dict().items()]
        ),
    )


def detr():
    """facebookresearch's DETR and its successors."""
    args = argparse.Namespace(
        lr=1e-4, masks=False, output_dir='/a', lr_backbone_names=['backbone']
    )
    return dict(
        state_dict=state_dict(), optimizer=optimizer(), epoch=11, args=args
    )


LAYOUTS = {
    'CO-DETR, mmdet 2': mmcv,
    'mmseg 0.x': mmseg_0,
    'mmdet 3, mmseg 1': mmengine,
    'with the state of a training': mmengine_to_resume,
    'DETR': detr,
    'bare weights': state_dict,
}


def run(tmp_path, tool, cfg, *args):
    path = toy.write(tmp_path / 'cfg.py', cfg)
    argv = [path, *args, '--work-dir', tmp_path / 'w']
    ranks = start_ranks(argv, 1, tmp_path / 'out', tool=tool)
    code = ranks.wait(180)
    assert code == [0], ranks.output()
    return ranks.output()


@pytest.mark.parametrize(
    ('layout', 'old'),
    [*((layout, False) for layout in LAYOUTS), ('mmseg 0.x', True)],
)
def test_weights(tmp_path, layout, old):
    path = tmp_path / 'public.pth'
    torch.save(LAYOUTS[layout](), path, _use_new_zipfile_serialization=not old)
    output = run(tmp_path, 'test', toy.config(**toy.TEST), path)
    assert 'mean: 3.0000' in output
    assert 'trusted' not in output


def test_resumed_from(tmp_path):
    path = tmp_path / 'public.pth'
    torch.save(mmengine_to_resume(), path)
    output = run(tmp_path, 'train', TRAINING, '--resume', path)
    assert 'Epoch(train) [2][1/6]' in output
    checkpoint = torch.load(tmp_path / 'w/epoch_3.pth', weights_only=False)
    assert checkpoint['meta']['iter'] == 18
