"""Checkpoints: save, load, resume, and what of them is trusted."""

from .load import check_complete, load_weights, read_checkpoint
from .lock import WorkDirInUseError, work_dir_lock
from .pretrained import write_pretrained
from .runner import CheckpointingRunner, MissingRanksError

__all__ = [
    'CheckpointingRunner',
    'MissingRanksError',
    'WorkDirInUseError',
    'check_complete',
    'load_weights',
    'read_checkpoint',
    'work_dir_lock',
    'write_pretrained',
]
