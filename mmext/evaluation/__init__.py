"""Metrics of several tasks, and COCO's.

Semantic segmentation needs none of ours: ``mmseg.IoUMetric`` reads the same
fields, ``gt_sem_seg`` and ``pred_sem_seg``, and computes mIoU and pixel
accuracy (``aAcc``) from counts over the whole set.
"""

from .coco_metric import CocoMetric
from .delta_m import MultiTaskEvaluator, delta_m
from .task_metrics import (
    ClassificationTaskMetric,
    DepthMetric,
    RegressionTaskMetric,
    SurfaceNormalMetric,
)

__all__ = [
    'ClassificationTaskMetric',
    'CocoMetric',
    'DepthMetric',
    'MultiTaskEvaluator',
    'RegressionTaskMetric',
    'SurfaceNormalMetric',
    'delta_m',
]
