"""Hooks: stops, checkpoints, and checks of a training."""

from .activation_checkpoint import ActivationCheckpointHook
from .checkpoint import AtomicCheckpointHook
from .class_count_check import ClassCountCheckHook
from .evaluation_labels import EvaluationLabelHook
from .graceful_stop import GracefulExit, GracefulStopHook
from .label_range import LabelRangeHook
from .label_report import LabelReportHook
from .loss_balancer import LossBalancerHook
from .mae_visualization import MAEVisualizationHook, draw_reconstruction

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
    'MAEVisualizationHook',
    'draw_reconstruction',
]
