"""Training: processes and devices, checkpoints, resume, checks."""

from .activation_checkpoint_hook import ActivationCheckpointHook
from .batch_skipping import SkippableBatches, make_skippable
from .checkpoint_file import (
    CheckpointSummary,
    find_newest_checkpoint,
    read_checkpoint,
    summarize_checkpoint,
)
from .checkpoint_hook import AtomicCheckpointHook
from .checkpoint_load import (
    LoadReport,
    check_complete,
    check_fits,
    load_weights,
)
from .class_count_check_hook import ClassCountCheckHook, check_class_count
from .cpu_amp_optim_wrapper import CpuAmpOptimWrapper
from .device import pin_device, resolve_device
from .dist_setup import close_process_group, init_process_group
from .distributed_data_parallel import (
    DistributedDataParallel,
    GradientSyncError,
    PeerError,
)
from .graceful_stop_hook import GracefulExit, GracefulStopHook
from .label_range_hook import LabelRangeHook
from .label_report_hook import LabelReportHook
from .launcher import LAUNCHERS, LauncherEnv, read_launcher_env
from .model_wrapping import model_wrapper_config
from .portable_runner import PortableRunner
from .replica_check_hook import ReplicaCheckHook, checksum
from .resumable_loops import (
    ResumableEpochBasedTrainLoop,
    ResumableIterBasedTrainLoop,
)
from .rng_state import get_rng_state, set_rng_state
from .sample_errors import SampleError, name_failing_samples
from .stop_gate import LocalStore, StopGate

__all__ = [
    'LAUNCHERS',
    'ActivationCheckpointHook',
    'AtomicCheckpointHook',
    'CheckpointSummary',
    'ClassCountCheckHook',
    'CpuAmpOptimWrapper',
    'DistributedDataParallel',
    'GracefulExit',
    'GracefulStopHook',
    'GradientSyncError',
    'LabelRangeHook',
    'LabelReportHook',
    'LauncherEnv',
    'LoadReport',
    'LocalStore',
    'PeerError',
    'PortableRunner',
    'ReplicaCheckHook',
    'ResumableEpochBasedTrainLoop',
    'ResumableIterBasedTrainLoop',
    'SampleError',
    'SkippableBatches',
    'StopGate',
    'check_class_count',
    'check_complete',
    'check_fits',
    'checksum',
    'close_process_group',
    'find_newest_checkpoint',
    'get_rng_state',
    'init_process_group',
    'load_weights',
    'make_skippable',
    'model_wrapper_config',
    'name_failing_samples',
    'pin_device',
    'read_checkpoint',
    'read_launcher_env',
    'resolve_device',
    'set_rng_state',
    'summarize_checkpoint',
]
