"""What DDP's reducer makes of a step: trace, predict and explain.

- ``trace``: what one step does with each parameter, by ``value_flow`` (in the
  forward) and ``ready_gradients`` (in the backward);
- ``reducer``: what DDP will do, predicted from traces;
- ``advice``: changes that make it work, each tried on the traces;
- ``train_step``: models that train in a way of their own, which DDP's
  wrappers do not call;
- ``stale_graph``: steps that go through the graph of an earlier one.
"""

from .advice import Advice, find_advice
from .code_location import location_of
from .graph import graph_leaves, graph_nodes, named_tensors
from .outputs import OpenedOutput, all_tensors, open_output, trainable_tensors
from .reducer import (
    Outcome,
    Prediction,
    SyncSettings,
    predict_failures,
    predict_outcome,
)
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
    put_back,
    record_step,
    run_training_forward,
    trace_step,
    trace_train_step,
)
from .train_step import (
    STEP_REMEDY,
    WRAPPERS,
    bypassed_methods,
    has_own_train_step,
    keep_parameter_names,
    loose_parameters,
)

__all__ = [
    'STEP_REMEDY',
    'WRAPPERS',
    'Advice',
    'OpenedOutput',
    'Outcome',
    'Prediction',
    'StaleGraphError',
    'StepUsage',
    'SyncSettings',
    'UnusedParameter',
    'UnusedReason',
    'all_tensors',
    'bypassed_methods',
    'find_advice',
    'find_outsiders',
    'graph_leaves',
    'graph_nodes',
    'has_own_train_step',
    'keep_parameter_names',
    'kept_tensors',
    'location_of',
    'loose_parameters',
    'name_stale_graphs',
    'named_tensors',
    'open_output',
    'predict_failures',
    'predict_outcome',
    'put_back',
    'record_step',
    'run_training_forward',
    'trace_step',
    'trace_train_step',
    'trainable_tensors',
]
