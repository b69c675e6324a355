"""Run one step and tell what it did with every parameter.

No process group is needed: what DDP will do follows from it, see
:mod:`~mmext.preflight.sync_outcome`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ._firing_recorder import FiringRecorder
from ._graph import graph_leaves, named_tensors, tensors_in
from ._value_flow import Cut, ValueFlow
from .step_usage import ParameterUse, StepUsage, UnusedReason

__all__ = ['trace_step', 'trace_train_step']

_CUT_REASONS = {
    'no_grad': UnusedReason.NO_GRAD,
    'checkpoint': UnusedReason.CHECKPOINT_INPUT,
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
    parameters = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    names = tuple(parameters)
    with _unchanged(model), torch.enable_grad():
        with ValueFlow(model, names) as flow:
            outputs = forward()
            loss = loss_of(outputs)
        reached = graph_leaves(tensors_in(outputs))
        with FiringRecorder(model, parameters) as recorder:
            if loss.requires_grad:
                recorder.watch(loss)
                loss.backward()
        fired = {firing.name for firing in recorder.firings}
        by_key = {
            key: graph_leaves(tensors)
            for key, tensors in named_tensors(outputs).items()
        }
        cuts = flow.cut_before([loss, *tensors_in(outputs)])
        unused = {
            name: _explain(index, id(parameters[name]), flow, cuts, by_key)
            for index, name in enumerate(names)
            if name not in fired
        }
        return StepUsage(
            names=names,
            firings=recorder.firings,
            reachable=frozenset(
                name for name in names if id(parameters[name]) in reached
            ),
            unused=unused,
            reentrant=recorder.reentrant,
            module_calls=flow.module_calls,
        )


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

    def forward() -> Any:
        if isinstance(data, dict):
            return model(**data, mode='loss')
        return model(*data, mode='loss')

    return trace_step(model, forward, lambda out: model.parse_losses(out)[0])


def _explain(
    index: int,
    leaf: int,
    flow: ValueFlow,
    cuts: dict[int, Cut],
    by_key: dict[str, set[int]],
) -> ParameterUse:
    """Why a parameter has no gradient."""
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
        cut = flow.no_grad_cuts.get(index, cut)
        if cut is None:
            return ParameterUse(UnusedReason.NEVER_USED)
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
