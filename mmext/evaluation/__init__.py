"""Metrics of several tasks, COCO's, and what a report tells of boxes.

Semantic segmentation needs none of ours: ``mmseg.IoUMetric`` reads the same
fields, ``gt_sem_seg`` and ``pred_sem_seg``, and computes mIoU and pixel
accuracy (``aAcc``) from counts over the whole set.
"""

from .box_metrics import (
    ERROR_KINDS,
    BoxError,
    CocoMetric,
    JudgedBoxes,
    average_precision,
    calibration,
    judge_boxes,
    lost_precision,
)
from .lvis_metric import (
    LVISMetric,
    known_categories,
    lvis_average_precision,
)
from .task_metrics import (
    ClassificationTaskMetric,
    DepthMetric,
    MultiTaskEvaluator,
    RegressionTaskMetric,
    SurfaceNormalMetric,
    delta_m,
)

__all__ = [
    'ERROR_KINDS',
    'BoxError',
    'ClassificationTaskMetric',
    'CocoMetric',
    'DepthMetric',
    'JudgedBoxes',
    'LVISMetric',
    'MultiTaskEvaluator',
    'RegressionTaskMetric',
    'SurfaceNormalMetric',
    'average_precision',
    'calibration',
    'delta_m',
    'judge_boxes',
    'known_categories',
    'lost_precision',
    'lvis_average_precision',
]
