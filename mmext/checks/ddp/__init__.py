"""What DDP's reducer makes of a step: trace, predict and explain.

- ``trace``: what one step does with each parameter, by ``value_flow`` (in the
  forward) and ``ready_gradients`` (in the backward);
- ``reducer``: what DDP will do, predicted from traces;
- ``explain``: why a parameter has no gradient, and what helps, in words; and
  models that train in a way of their own, which DDP's wrappers do not call;
- ``graph``: tensors, their graphs, and steps that go through an earlier one.
"""

from .explain import (
    AVERAGE_ALL,
    NO_SEARCH,
    OUTSIDE_FORWARD,
    REPLACE_CHECKPOINTS,
    SEARCH,
    STEP_REMEDY,
    USE_IN_FORWARD,
    WRAPPERS,
    Explanation,
    Step,
    Verdict,
    bypassed_methods,
    explain_step,
    filled,
    group_lines,
    has_own_train_step,
    loose_parameters,
    name_lines,
    reasons_in,
    remedy_for,
)
from .graph import (
    OpenedOutput,
    StaleGraphError,
    all_tensors,
    find_outsiders,
    graph_leaves,
    graph_nodes,
    kept_tensors,
    name_stale_graphs,
    named_tensors,
    open_output,
    trainable_tensors,
)
from .ready_gradients import accumulator_of
from .reducer import (
    Outcome,
    Prediction,
    SyncSettings,
    predict_failures,
    predict_outcome,
)
from .trace import (
    StepUsage,
    UnusedParameter,
    UnusedReason,
    record_step,
    restored,
    run_training_forward,
    trace_step,
    trace_train_step,
)
from .value_flow import code_location, location_in, running_frames

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
    'accumulator_of',
    'all_tensors',
    'bypassed_methods',
    'code_location',
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
    'reasons_in',
    'record_step',
    'remedy_for',
    'restored',
    'run_training_forward',
    'running_frames',
    'trace_step',
    'trace_train_step',
    'trainable_tensors',
]
