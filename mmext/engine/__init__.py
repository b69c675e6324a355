"""Training: processes and devices, checkpoints, resume, checks."""

from .checkpoints import check_complete, load_weights, read_checkpoint
from .hooks import (
    ActivationCheckpointHook,
    AtomicCheckpointHook,
    ClassCountCheckHook,
    EvaluationLabelHook,
    GracefulExit,
    GracefulStopHook,
    LabelRangeHook,
    LabelReportHook,
    LossBalancerHook,
    MAEVisualizationHook,
    ReplicaCheckHook,
    draw_reconstruction,
)
from .launch import (
    close_process_group,
    init_process_group,
    pin_device,
    read_launcher_env,
    resolve_device,
)
from .loops import ResumableEpochBasedTrainLoop, ResumableIterBasedTrainLoop
from .optim import (
    AmpGradientSurgeryOptimWrapper,
    GradientSurgeryOptimWrapper,
    MergedOptimWrapperConstructor,
)
from .rng_state import get_rng_state, set_rng_state
from .runner import PortableRunner
from .sample_errors import SampleError

__all__ = [
    'ActivationCheckpointHook',
    'AmpGradientSurgeryOptimWrapper',
    'AtomicCheckpointHook',
    'ClassCountCheckHook',
    'EvaluationLabelHook',
    'GracefulExit',
    'GracefulStopHook',
    'GradientSurgeryOptimWrapper',
    'LabelRangeHook',
    'LabelReportHook',
    'LossBalancerHook',
    'MAEVisualizationHook',
    'MergedOptimWrapperConstructor',
    'PortableRunner',
    'ReplicaCheckHook',
    'ResumableEpochBasedTrainLoop',
    'ResumableIterBasedTrainLoop',
    'SampleError',
    'check_complete',
    'close_process_group',
    'draw_reconstruction',
    'get_rng_state',
    'init_process_group',
    'load_weights',
    'pin_device',
    'read_checkpoint',
    'read_launcher_env',
    'resolve_device',
    'set_rng_state',
]
