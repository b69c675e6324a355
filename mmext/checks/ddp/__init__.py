"""What DDP's reducer makes of a step: trace, predict and explain.

- ``trace``: what one step does with each parameter, by ``value_flow`` (in the
  forward) and ``ready_gradients`` (in the backward);
- ``reducer``: what DDP will do, predicted from traces;
- ``explain``: why a parameter has no gradient, and what helps, in words;
- ``train_step``: models that train in a way of their own, which DDP's
  wrappers do not call;
- ``stale_graph``: steps that go through the graph of an earlier one.
"""

from .code_location import location_in, running_frames
from .explain import (
    AVERAGE_ALL,
    NO_SEARCH,
    OUTSIDE_FORWARD,
    REPLACE_CHECKPOINTS,
    SEARCH,
    USE_IN_FORWARD,
    Explanation,
    Step,
    Verdict,
    explain_step,
    filled,
    group_lines,
    name_lines,
    reasons_in,
    remedy_for,
)
from .graph import (
    OpenedOutput,
    all_tensors,
    graph_leaves,
    graph_nodes,
    named_tensors,
    open_output,
    trainable_tensors,
)
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
    loose_parameters,
)

__all__ = [
    'AVERAGE_ALL',
    'NO_SEARCH',
    'OUTSIDE_FORWARD',
    'REPLACE_CHECKPOINTS',
    'SEARCH',
    'STEP_REMEDY',
    'USE_IN_FORWARD',
    'WRAPPERS',
    'Explanation',
    'OpenedOutput',
    'Outcome',
    'Prediction',
    'StaleGraphError',
    'Step',
    'StepUsage',
    'SyncSettings',
    'UnusedParameter',
    'UnusedReason',
    'Verdict',
    'all_tensors',
    'bypassed_methods',
    'explain_step',
    'filled',
    'find_outsiders',
    'graph_leaves',
    'graph_nodes',
    'group_lines',
    'has_own_train_step',
    'kept_tensors',
    'location_in',
    'loose_parameters',
    'name_lines',
    'name_stale_graphs',
    'named_tensors',
    'open_output',
    'predict_failures',
    'predict_outcome',
    'put_back',
    'reasons_in',
    'record_step',
    'remedy_for',
    'run_training_forward',
    'running_frames',
    'trace_step',
    'trace_train_step',
    'trainable_tensors',
]
