"""Components that are not there, and arguments that they do not take."""

import pytest
from helpers.lint_findings import changed, lint
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, DefaultScope

from mmext.config import DELETE


def test_of_another_scope():
    (found,) = lint(
        {'model.backbone.type': 'mmdet.VisionTransformer2'}, 'TYPE'
    )
    assert found.rule == 'TYPE001'
    # Known where it is registered: only the prefix lacks.
    cfg = changed({'model.backbone.type': 'MixVisionTransformer'})
    cfg.default_scope = 'mmext'
    assert 'TYPE001' in {each.rule for each in lint(cfg, 'TYPE')}


def test_a_near_name_is_needed_inside():
    assert lint({'model.backbone.type': 'Qqqqqqqqqq'}, 'TYPE001') == []
    assert lint({'model.type': 'Qqqqqqqqqq'}, 'TYPE001')


@pytest.mark.parametrize(
    ('place', 'key', 'near'),
    [
        ('model.backbone', 'dept', '(depth)'),
        ('model.neck', 'outchannels', 'out_channels'),
        ('train_dataloader.dataset', 'anno_file', 'ann_file'),
        ('train_dataloader.dataset', 'ann_files', 'ann_file'),
        ('val_evaluator', 'metrics', '(metric)'),
        ('default_hooks.logger', 'ignore_lasts', 'ignore_last'),
        ('default_hooks.logger', 'intervall', '(interval)'),
        ('default_hooks.checkpoint', 'max_keep_ckpt', 'max_keep_ckpts'),
        ('optim_wrapper.optimizer', 'weight_deca', 'weight_decay'),
        ('optim_wrapper.optimizer', 'beta', '(betas)'),
    ],
)
def test_unknown_argument(place, key, near):
    """Renamed where it can be nothing else, and the right one is free."""
    changes = {'optim_wrapper.optimizer': {'type': 'AdamW', 'betas': (0, 0)}}
    changes['model.neck'] = {'type': 'FPN', 'in_channels': [1], 'num_outs': 1}
    (found,) = lint({**changes, f'{place}.{key}': 1}, 'ARG001')
    assert found.key == f'{place}.{key}'
    assert found.names == (near.strip('()'),)
    right = {f'{place}.{key}': DELETE, f'{place}.{near}': 1}
    assert found.options == ({} if near[0] == '(' else right)


def test_is_what_building_says():
    cfg = changed({'model.backbone.dept': 50})
    assert lint(cfg, 'ARG001')
    with (
        DefaultScope.overwrite_default_scope('mmdet'),
        pytest.raises(TypeError, match='dept'),
    ):
        MODELS.build(ConfigDict(cfg.model.backbone))


def test_what_others_take_away_is_no_error():
    changes = {
        'optim_wrapper.constructor': 'X',
        'optim_wrapper.paramwise_cfg': {},
        'param_scheduler.1.convert_to_iter_based': True,
        'default_hooks.logger.priority': 'LOW',
        'model.bbox_head.norm_cfg': {'type': 'BN', 'requires_grad': True},
        'model.backbone.conv_cfg': {'type': 'DCNv2', 'deform_groups': 1},
        'model.test_cfg': {'nms': {'type': 'nms', 'iou_threshold': 0.5}},
    }
    assert lint(changes, 'ARG001') == []


def test_misplaced_settings_are_told_once():
    found = lint({'optim_wrapper.find_unused_parameters': True})
    assert [each.rule for each in found] == ['KEY003']
