"""What DDP's reducer makes of a step: trace, predict, explain, prevent.

- ``trace``: what one step does with each parameter, by ``value_flow`` (in the
  forward) and ``ready_gradients`` (in the backward);
- ``reducer``: what DDP will do, predicted from traces;
- ``advice``: changes that make it work, each tried on the traces;
- ``report``: the errors and their texts;
- ``counter`` and ``vote``: what is checked in every step, in each process and
  between them;
- ``train_step``: models that train in a way of their own, which DDP's
  wrappers do not call;
- ``stale_graph``: steps that go through the graph of an earlier one;
- ``wrapper``: the DDP wrapper that does all this;
- ``watch``: which process is missing, and where it was last seen.
"""

from .code_location import location_of
from .graph import graph_leaves, graph_nodes, named_tensors
from .outputs import all_tensors
from .reducer import (
    Outcome,
    Prediction,
    SyncSettings,
    predict_failures,
    predict_outcome,
)
from .replicas import checksum, first_difference
from .report import GradientSyncError, PeerError, is_peer_error, peer_gone
from .stale_graph import (
    StaleGraphError,
    find_outsiders,
    kept_tensors,
    name_stale_graphs,
)
from .trace import (
    StepUsage,
    UnusedParameter,
    UnusedReason,
    record_step,
    run_training_forward,
    trace_step,
    trace_train_step,
)
from .train_step import (
    STEP_REMEDY,
    bypassed_methods,
    has_own_train_step,
    keep_parameter_names,
    loose_parameters,
)
from .vote import StepVote, Vote
from .watch import (
    CHECKPOINT,
    RankWatch,
    current_watch,
    group_timeout_s,
    lost_ranks,
    missing_ranks,
    note_failure,
    note_phase,
    start_watch,
    stop_watch,
    waiting_for_ranks,
    watch_parent,
    watched_run,
)
from .wrapper import (
    DistributedDataParallel,
    model_wrapper_config,
    unwrap_model,
)

__all__ = [
    'CHECKPOINT',
    'STEP_REMEDY',
    'DistributedDataParallel',
    'GradientSyncError',
    'Outcome',
    'PeerError',
    'Prediction',
    'RankWatch',
    'StaleGraphError',
    'StepUsage',
    'StepVote',
    'SyncSettings',
    'UnusedParameter',
    'UnusedReason',
    'Vote',
    'all_tensors',
    'bypassed_methods',
    'checksum',
    'current_watch',
    'find_outsiders',
    'first_difference',
    'graph_leaves',
    'graph_nodes',
    'group_timeout_s',
    'has_own_train_step',
    'is_peer_error',
    'keep_parameter_names',
    'kept_tensors',
    'location_of',
    'loose_parameters',
    'lost_ranks',
    'missing_ranks',
    'model_wrapper_config',
    'name_stale_graphs',
    'named_tensors',
    'note_failure',
    'note_phase',
    'peer_gone',
    'predict_failures',
    'predict_outcome',
    'record_step',
    'run_training_forward',
    'start_watch',
    'stop_watch',
    'trace_step',
    'trace_train_step',
    'unwrap_model',
    'waiting_for_ranks',
    'watch_parent',
    'watched_run',
]
