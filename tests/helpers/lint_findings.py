"""Findings of one lint rule, for configs that tests write as dicts."""

import copy
from collections.abc import Mapping
from typing import Any

from mmengine.config import Config

from mmext.checks.config.child import apply_options
from mmext.checks.findings import Finding
from mmext.checks.preflight.rules.registry import lint_config

# A whole config of a training, in which nothing is wrong.
CLEAN: dict[str, Any] = {
    'default_scope': 'mmdet',
    'model': {
        'type': 'RetinaNet',
        'backbone': {'type': 'ResNet', 'depth': 50, 'norm_eval': False},
        'bbox_head': {'type': 'RetinaHead', 'num_classes': 80},
    },
    'train_cfg': {
        'type': 'EpochBasedTrainLoop',
        'max_epochs': 12,
        'val_interval': 1,
    },
    'val_cfg': {'type': 'ValLoop'},
    'optim_wrapper': {
        'type': 'OptimWrapper',
        'optimizer': {'type': 'SGD', 'lr': 0.02},
    },
    'param_scheduler': [
        {
            'type': 'LinearLR',
            'start_factor': 0.001,
            'by_epoch': False,
            'begin': 0,
            'end': 500,
        },
        {
            'type': 'MultiStepLR',
            'begin': 0,
            'end': 12,
            'by_epoch': True,
            'milestones': [8, 11],
            'gamma': 0.1,
        },
    ],
    'train_dataloader': {
        'batch_size': 2,
        'num_workers': 2,
        'persistent_workers': True,
        'sampler': {'type': 'DefaultSampler', 'shuffle': True},
        'dataset': {
            'type': 'CocoDataset',
            'pipeline': [
                {'type': 'LoadImageFromFile'},
                {'type': 'LoadAnnotations', 'with_bbox': True},
                {'type': 'PackDetInputs'},
            ],
        },
    },
    'val_dataloader': {
        'batch_size': 1,
        'num_workers': 2,
        'sampler': {'type': 'DefaultSampler', 'shuffle': False},
        'dataset': {'type': 'CocoDataset', 'pipeline': []},
    },
    'val_evaluator': {'type': 'CocoMetric', 'metric': 'bbox'},
    'default_hooks': {
        'checkpoint': {'type': 'CheckpointHook', 'interval': 1},
        'logger': {'type': 'LoggerHook', 'interval': 50},
    },
}


def changed(changes: Mapping[str, Any]) -> Config:
    """The clean config with some keys changed; None removes one."""
    cfg = copy.deepcopy(CLEAN)
    for key, value in changes.items():
        node: Any = cfg
        *steps, last = key.split('.')
        for step in steps:
            node = node[int(step)] if step.isdigit() else node[step]
        if value is None:
            node.pop(last)
        elif isinstance(node, list):
            node[int(last)] = value
        else:
            node[last] = value
    return Config(cfg)


def lint(
    changes: Mapping[str, Any] | Config, rule: str = '', **options: Any
) -> list[Finding]:
    """Findings of a rule, or of rules that begin so.

    The change that a finding offers must do away with it.
    """
    cfg = changes if isinstance(changes, Config) else changed(changes)
    options.setdefault('environ', {})
    findings = [
        finding
        for finding in lint_config(cfg, **options)
        if finding.rule.startswith(rule)
    ]
    for finding in findings:
        # A model that was built does not change with the config.
        if finding.options and 'model' not in options:
            _check_mends(finding, cfg, options)
    return findings


def _check_mends(
    finding: Finding, cfg: Config, options: dict[str, Any]
) -> None:
    mended = Config(apply_options(cfg.to_dict(), finding.options))
    # The text of a file would be that of the config before.
    options = {key: v for key, v in options.items() if key != 'file'}
    left = [
        item
        for item in lint_config(mended, **options)
        if (item.rule, item.key) == (finding.rule, finding.key)
        and item.message == finding.message
    ]
    assert left == [], f'{finding.rule}: {finding.options} does not mend it'
