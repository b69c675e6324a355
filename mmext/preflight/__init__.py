"""Prove a training sound before it runs on many devices."""

from .misplaced_keys import (
    RIGHT_PLACES,
    MisplacedKey,
    MisplacedKeyError,
    check_misplaced_keys,
    find_misplaced_keys,
)
from .step_usage import Firing, ParameterUse, StepUsage, UnusedReason
from .sync_cures import Cure, SyncSettings, find_cures
from .sync_outcome import Outcome, Prediction, predict_outcome
from .sync_report import RankReport, format_sync_report
from .tracing import trace_step, trace_train_step

__all__ = [
    'RIGHT_PLACES',
    'Cure',
    'Firing',
    'MisplacedKey',
    'MisplacedKeyError',
    'Outcome',
    'ParameterUse',
    'Prediction',
    'RankReport',
    'StepUsage',
    'SyncSettings',
    'UnusedReason',
    'check_misplaced_keys',
    'find_cures',
    'find_misplaced_keys',
    'format_sync_report',
    'predict_outcome',
    'trace_step',
    'trace_train_step',
]
