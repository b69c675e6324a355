"""Hooks: stops, checkpoints, and checks of a training."""

from .activation_checkpoint import ActivationCheckpointHook
from .checkpoint import AtomicCheckpointHook
from .class_count_check import ClassCountCheckHook
from .graceful_stop import GracefulExit, GracefulStopHook
from .label_range import EvaluationLabelHook, LabelRangeHook
from .label_report import LabelReportHook
from .loss_balancer import LossBalancerHook

__all__ = [
    'ActivationCheckpointHook',
    'AtomicCheckpointHook',
    'ClassCountCheckHook',
    'EvaluationLabelHook',
    'GracefulExit',
    'GracefulStopHook',
    'LabelRangeHook',
    'LabelReportHook',
    'LossBalancerHook',
]
