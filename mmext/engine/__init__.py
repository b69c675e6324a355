"""Training: processes and devices, checkpoints, resume, checks."""

from ..utils.training import freeze_modules, get_rng_state, set_rng_state
from .checkpoint import (
    UnusableCheckpointError,
    WorkDirError,
    WorkDirInUseError,
    check_complete,
    load_weights,
    read_checkpoint,
    read_last_checkpoint,
    write_pretrained,
)
from .class_rows import checkpoint_metainfo
from .hooks.activation_checkpoint import ActivationCheckpointHook
from .hooks.checkpoint import AtomicCheckpointHook
from .hooks.graceful_stop import GracefulExit, GracefulStopHook
from .hooks.label_range import (
    ClassCountCheckHook,
    EvaluationLabelHook,
    LabelRangeHook,
)
from .hooks.label_report import LabelReportHook
from .hooks.loss_balancer import LossBalancerHook
from .launch import (
    close_process_group,
    init_process_group,
    keep_freed_memory,
    pin_device,
    resolve_device,
)
from .loops import ResumableEpochBasedTrainLoop, ResumableIterBasedTrainLoop
from .optim import (
    AmpGradientSurgeryOptimWrapper,
    GradientSurgeryOptimWrapper,
    MergedOptimWrapperConstructor,
)
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
    'MergedOptimWrapperConstructor',
    'PortableRunner',
    'ResumableEpochBasedTrainLoop',
    'ResumableIterBasedTrainLoop',
    'SampleError',
    'UnusableCheckpointError',
    'WorkDirError',
    'WorkDirInUseError',
    'check_complete',
    'checkpoint_metainfo',
    'close_process_group',
    'freeze_modules',
    'get_rng_state',
    'init_process_group',
    'keep_freed_memory',
    'load_weights',
    'pin_device',
    'read_checkpoint',
    'read_last_checkpoint',
    'resolve_device',
    'set_rng_state',
    'write_pretrained',
]
