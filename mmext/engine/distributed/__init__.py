"""Training in several processes, whose errors name their reason.

- ``wrapper``: the DDP wrapper, which uses the predictions of
  :mod:`mmext.checks.ddp`;
- ``report``: the errors and their texts;
- ``counter`` and ``vote``: what is checked in every step, in each process and
  between them, and whether the copies of a model are still the same;
- ``watch``: which process is missing, and where it was last seen.
"""

from .report import GradientSyncError, watched_run
from .vote import StepVote, Vote
from .watch import (
    CHECKPOINT,
    PeerError,
    RankWatch,
    current_watch,
    start_watch,
    stop_watch,
)
from .wrapper import (
    DistributedDataParallel,
    keep_parameter_names,
    model_wrapper_config,
    unwrap_model,
)

__all__ = [
    'CHECKPOINT',
    'DistributedDataParallel',
    'GradientSyncError',
    'PeerError',
    'RankWatch',
    'StepVote',
    'Vote',
    'current_watch',
    'keep_parameter_names',
    'model_wrapper_config',
    'start_watch',
    'stop_watch',
    'unwrap_model',
    'watched_run',
]
