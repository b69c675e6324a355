"""Run one step and tell what it did with every parameter.

No process group is needed: what DDP will do follows from it, see
:mod:`~mmext.preflight.sync_outcome`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ._firing_recorder import FiringRecorder
from ._graph import (
    graph_leaves,
    hides_parameters,
    joined,
    named_tensors,
    tensors_in,
)
from ._value_flow import Cut, ValueFlow
from .step_usage import ParameterUse, StepUsage, UnusedReason

__all__ = [
    'record_step',
    'run_training_forward',
    'trace_step',
    'trace_train_step',
]

_CUT_REASONS = {
    'no_grad': UnusedReason.NO_GRAD,
    'function': UnusedReason.DETACHED,
}


def trace_step(
    model: nn.Module,
    forward: Callable[[], Any],
    loss_of: Callable[[Any], Tensor],
) -> StepUsage:
    """Run forward and backward once and record the use of parameters.

    The model is left as it was: gradients, buffers and random numbers
    included. Hooks on parameters, such as those of a DDP wrapper that is
    still in charge of the model, are run like in any backward.

    Args:
        model: The model, not wrapped.
        forward: Runs the model's forward and returns what a DDP wrapper
            would get from it.
        loss_of: Makes the scalar to differentiate of it.

    Returns:
        What happened to each trainable parameter.

    Examples:
        >>> model = nn.ModuleDict({'a': nn.Linear(2, 2), 'b': nn.Linear(2, 2)})
        >>> usage = trace_step(
        ...     model, lambda: model['a'](torch.ones(1, 2)), Tensor.sum
        ... )
        >>> sorted(usage.unused)
        ['b.bias', 'b.weight']
        >>> usage.unused['b.bias'].reason.value
        'never used in forward'
    """
    with _unchanged(model):
        return record_step(model, forward, loss_of)


def record_step(
    model: nn.Module,
    forward: Callable[[], Any],
    loss_of: Callable[[Any], Tensor],
    look: Callable[[Any, Tensor], None] | None = None,
) -> StepUsage:
    """Run forward and backward once, as :func:`trace_step`, and keep both.

    The model has the gradients of the step afterwards, added to those that it
    had before, and its buffers and the random numbers have gone on.

    Args:
        model: The model, not wrapped.
        forward: As of :func:`trace_step`.
        loss_of: As of :func:`trace_step`.
        look: Is called with the outputs and the loss before the backward.

    Returns:
        What happened to each trainable parameter.
    """
    parameters = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    names = tuple(parameters)
    with torch.enable_grad():
        with ValueFlow(model, names) as flow:
            outputs = forward()
            loss = loss_of(outputs)
        if look is not None:
            look(outputs, loss)
        reached = graph_leaves(tensors_in(outputs))
        joint = hides_parameters(list(tensors_in(outputs)), loss)
        with FiringRecorder(model, parameters) as recorder:
            if loss.requires_grad:
                recorder.watch(loss)
                loss.backward(retain_graph=joint)
        again = None
        if joint and loss.requires_grad:
            again = _record_joint(model, parameters, outputs, loss_of)
    unused = _explain_unused(parameters, recorder, flow, outputs, loss)
    return StepUsage(
        names=names,
        firings=recorder.firings,
        reachable=frozenset(
            name for name in names if id(parameters[name]) in reached
        ),
        unused=unused,
        reentrant=recorder.reentrant | (again.reentrant if again else {}),
        module_calls=flow.module_calls,
        reran=tuple(recorder.reran),
        joint_firings=again.firings if again else None,
        call_sites={names[i]: site for i, site in flow.call_sites.items()},
    )


def _explain_unused(
    parameters: Mapping[str, nn.Parameter],
    recorder: FiringRecorder,
    flow: ValueFlow,
    outputs: Any,
    loss: Tensor,
) -> dict[str, ParameterUse]:
    """Why parameters that did not fire have no gradient."""
    fired = {firing.name for firing in recorder.firings}
    by_key = {
        key: graph_leaves(tensors)
        for key, tensors in named_tensors(outputs).items()
    }
    cuts = flow.cut_before([loss, *tensors_in(outputs)])
    # Lost to a checkpoint on the way to the loss, whatever else was done.
    lost = {
        index: cut
        for index, cut in flow.cut_before([loss]).items()
        if cut.cause == 'checkpoint'
    }
    return {
        name: _explain(index, id(parameters[name]), flow, cuts, by_key, lost)
        for index, name in enumerate(parameters)
        if name not in fired
    }


def _record_joint(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    outputs: Any,
    loss_of: Callable[[Any], Tensor],
) -> FiringRecorder:
    """Record a backward through all that was returned; keep no gradients."""
    grads = {
        p: None if p.grad is None else p.grad.clone()
        for p in parameters.values()
    }
    loss = loss_of(joined(outputs))
    with FiringRecorder(model, parameters, as_reducer=True) as recorder:
        recorder.watch(loss)
        loss.backward()
    for parameter, grad in grads.items():
        parameter.grad = grad
    return recorder


def trace_train_step(model: nn.Module, data: Any) -> StepUsage:
    """Trace the training step of a model of MMEngine's kind.

    Args:
        model: A ``BaseModel``, not wrapped. It is put into training mode.
        data: A batch as the data loader gives it.

    Returns:
        As of :func:`trace_step`.
    """
    model.train()
    data = model.data_preprocessor(data, True)
    return trace_step(
        model,
        lambda: run_training_forward(model, data),
        lambda out: model.parse_losses(out)[0],
    )


def run_training_forward(model: nn.Module, data: Any) -> Any:
    """The forward of a training step, as MMEngine calls it.

    Args:
        model: A ``BaseModel``.
        data: What its data preprocessor has returned.

    Returns:
        What ``forward`` returns.
    """
    if isinstance(data, dict):
        return model(**data, mode='loss')
    return model(*data, mode='loss')


def _explain(
    index: int,
    leaf: int,
    flow: ValueFlow,
    cuts: dict[int, Cut],
    by_key: dict[str, set[int]],
    lost: dict[int, Cut],
) -> ParameterUse:
    """Why a parameter has no gradient."""
    if index in lost:
        return ParameterUse(UnusedReason.CHECKPOINT_INPUT, lost[index].place)
    keys = [key for key, leaves in by_key.items() if leaf in leaves]
    if keys:
        named = ', '.join(repr(key) for key in keys if key)
        detail = f'forward returns it in {named}' if named else ''
        return ParameterUse(UnusedReason.NOT_IN_LOSS, detail=detail)
    cut = cuts.get(index)
    if flow.is_used(index):
        if cut is None:
            return ParameterUse(UnusedReason.NOT_IN_LOSS)
    else:
        inner = flow.no_grad_cuts.get(index)
        # What a checkpoint did to it is not why it is not in the loss.
        if cut is None or (inner and inner.cause != 'checkpoint'):
            cut = inner or cut
        if cut is None:
            return ParameterUse(UnusedReason.NEVER_USED)
    if cut.cause == 'checkpoint':
        return ParameterUse(UnusedReason.NOT_IN_LOSS, cut.place)
    detail = f'by {cut.function}' if cut.cause == 'function' else ''
    return ParameterUse(_CUT_REASONS[cut.cause], cut.place, detail)


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Put gradients, buffers and random numbers back afterwards."""
    grads = {p: p.grad for p in model.parameters()}
    buffers = {b: b.detach().clone() for b in model.buffers()}
    devices = {p.device for p in model.parameters() if p.device.type != 'cpu'}
    indices = [d.index for d in devices if d.index is not None]
    kind = next((d.type for d in devices), 'cuda')
    for parameter in grads:
        parameter.grad = None
    try:
        with torch.random.fork_rng(indices, device_type=kind):
            yield
    finally:
        for parameter, grad in grads.items():
            parameter.grad = grad
        with torch.no_grad():
            for buffer, value in buffers.items():
                buffer.copy_(value)
