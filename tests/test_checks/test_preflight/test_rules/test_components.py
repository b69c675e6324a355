"""Components that are not there, and arguments that they do not take."""

import pytest
from helpers.lint_findings import changed, lint
from mmdet.models import ResNet
from mmengine.config import Config
from torch import nn

from mmext.checks.config import DELETE


@pytest.mark.parametrize(
    ('location', 'key', 'near'),
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
def test_unknown_argument(location, key, near):
    """Renamed where it can be nothing else, and the right one is free."""
    changes = {'optim_wrapper.optimizer': {'type': 'AdamW', 'betas': (0, 0)}}
    changes['model.neck'] = {'type': 'FPN', 'in_channels': [1], 'num_outs': 1}
    (finding,) = lint({**changes, f'{location}.{key}': 1}, 'ARG001')
    assert finding.key == f'{location}.{key}'
    assert finding.names == (near.strip('()'),)
    right = {f'{location}.{key}': DELETE, f'{location}.{near}': 1}
    assert finding.options == ({} if near[0] == '(' else right)


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


def child_of(tmp_path, text, **changes):
    (tmp_path / 'base.py').write_text(changed(changes).pretty_text)
    child = tmp_path / 'child.py'
    child.write_text(f"_base_ = 'base.py'\n{text}\n")
    return Config.fromfile(child)


def test_left_over_of_a_base(tmp_path):
    """One finding, at the type that takes the place of the other one."""
    cfg = child_of(
        tmp_path,
        "model = dict(backbone=dict(type='SwinTransformer', depths=(2, 2)))",
        **{'model.backbone.style': 'pytorch', 'model.backbone.strides': ()},
    )
    (finding,) = lint(cfg, 'ARG001')
    assert (finding.key, finding.line) == ('model.backbone.type', 2)
    assert finding.names == ('depth', 'norm_eval', 'style')
    assert 'backbone=dict(_delete_=True' in finding.remedy
    assert 'in child.py:2; strides of the base would go, too' in finding.remedy
    # What is meant for `strides` is not known.
    assert finding.options == {}


def test_dropped_arguments():
    """``**kwargs`` that are not handed on."""
    metric = {'type': 'mmseg.IoUMetric', 'iou_metric': ['mDice']}
    (finding,) = lint({'val_evaluator': metric}, 'ARG002')
    assert finding.severity.name == 'WARNING'
    assert finding.options['val_evaluator.iou_metrics'] == ['mDice']
    metric = {'type': 'mmseg.IoUMetric', 'of_another': 1}
    (finding,) = lint({'val_evaluator': metric}, 'ARG002')
    assert (finding.severity.name, finding.options) == ('INFO', {})


def test_a_switch_of_checkpoints_that_nothing_reads():
    model = nn.Module()
    model.encoder = nn.Sequential(nn.Linear(1, 1))
    changes = {'model.encoder': {'ffn_cfg': {'with_cp': True}}}
    (finding,) = lint(changes, 'ARG002', model=model)
    assert finding.key == 'model.encoder.ffn_cfg.with_cp'
    reads = type('Reads', (ResNet,), {'__init__': nn.Module.__init__})
    model.encoder[0] = reads()
    assert lint(changes, 'ARG002', model=model) == []


def test_names_of_one_package_without_a_scope():
    cfg = changed({'default_scope': None})
    (finding,) = lint(cfg, 'TYPE')
    assert 'there is no default_scope' in finding.message
    # Of all packages that have a ResNet, one has the other names.
    assert finding.options == {'default_scope': 'mmdet'}


def test_names_of_albumentations_are_others():
    step = {'type': 'Albu', 'transforms': [{'type': 'RandomRotate90'}]}
    changes = {'train_dataloader.dataset.pipeline': [step]}
    findings = lint({**changes, 'default_scope': 'mmseg'}, 'TYPE')
    assert [
        finding for finding in findings if 'transforms' in finding.key
    ] == []


def test_what_an_average_takes():
    hook = {'type': 'EMAHook', 'momentun': 0.1}
    (finding,) = lint({'custom_hooks': [hook]}, 'ARG001')
    assert finding.key == 'custom_hooks[0].momentun'
    hook = {'type': 'EMAHook', 'momentum': 0.1, 'gamma': 9}
    assert lint({'custom_hooks': [hook]}, 'ARG001')
    hook['ema_type'] = 'ExpMomentumEMA'
    assert lint({'custom_hooks': [hook]}, 'ARG001') == []
