"""Checkpoints: save, load, resume, and what of them is trusted."""

from .exchange import MissingRanksError
from .load import check_complete, load_weights, read_checkpoint
from .pretrained import write_pretrained
from .runner import CheckpointingRunner, UnusableCheckpointError
from .work_dir import (
    WorkDirError,
    WorkDirInUseError,
    read_last_checkpoint,
    work_dir_lock,
)

__all__ = [
    'CheckpointingRunner',
    'MissingRanksError',
    'UnusableCheckpointError',
    'WorkDirError',
    'WorkDirInUseError',
    'check_complete',
    'load_weights',
    'read_checkpoint',
    'read_last_checkpoint',
    'work_dir_lock',
    'write_pretrained',
]
