"""Run one step and record what it does with every trainable parameter.

No process group is needed: :mod:`mmext.checks.ddp.reducer` predicts from the
record what DDP will do.
"""

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import distributed as torch_ddp
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from ...utils.training import get_rng_state, set_rng_state
from ..findings import ErrorCatcher
from .graph import (
    all_tensors,
    foreign_parameters,
    graph_leaves,
    graph_nodes,
    joined,
    named_tensors,
    next_number,
    passed_tensors,
    unopened_containers,
)
from .ready_gradients import ReadyGradient, ReadyRecorder, is_same
from .value_flow import ValueFlow


class UnusedReason(str, Enum):
    """Why a trainable parameter got no gradient."""

    NEVER_USED = 'never used in forward'
    BRANCH_NOT_TAKEN = 'in a branch that was not taken for this batch'
    NOT_IN_LOSS = 'used in forward, but its output is not in the loss'
    DETACHED = 'detached on its way to the loss'
    NO_GRAD = 'used under no_grad'
    CHECKPOINT_INPUT = (
        'used in a reentrant checkpoint whose input needs no gradient'
    )
    FROZEN = 'frozen (requires_grad=False) after the model was wrapped'
    IN_FORWARD = 'with a gradient only from a backward within forward'


_STEPS = (
    'a hook changes them in the backward, before DDP has averaged their '
    'gradients, as an optimizer that steps there does'
)


@dataclass(frozen=True)
class UnusedParameter:
    """Why a parameter got no gradient, and where."""

    reason: UnusedReason
    # Module, function and line, as far as known.
    location: str = ''
    # What else is known.
    detail: str = ''

    def in_words(self) -> str:
        """``reason (detail, location)``, as far as known."""
        known = ', '.join(filter(None, (self.detail, self.location)))
        return f'{self.reason.value} ({known})' if known else self.reason.value


@dataclass(frozen=True)
class StepUsage:
    """What one forward and backward did with the trainable parameters.

    Holds only names and numbers, so that it can be sent between processes.
    """

    # All trainable parameters, in the order of named_parameters().
    names: tuple[str, ...]
    # All gradients, in the order in which they were ready.
    ready: tuple[ReadyGradient, ...]
    # Parameters in the autograd graph of what forward returned, as far as DDP
    # looks into it, which it does with find_unused_parameters=True.
    reachable: frozenset[str]
    # Of each parameter whose gradient was never ready.
    unused: Mapping[str, UnusedParameter] = field(default_factory=dict)
    # Of each parameter whose gradient came from a nested backward, which is
    # what a reentrant checkpoint runs: the module that was checkpointed, and
    # the line of code where known.
    reentrant: Mapping[str, str] = field(default_factory=dict)
    # How often the forward of each module ran, if it did.
    module_calls: Mapping[str, int] = field(default_factory=dict)
    # The same as `ready`, for a backward that goes through all that forward
    # returned, whether it is in the loss or not: with find_unused_parameters,
    # and in the first step of a static graph. None if it makes no difference.
    joint_ready: tuple[ReadyGradient, ...] | None = None
    # Modules whose forward ran again in the backward, as those in activation
    # checkpoints of any kind do.
    reran: tuple[str, ...] = ()
    # Of each parameter that was used in a reentrant checkpoint: the line that
    # called it, as far as known.
    call_sites: Mapping[str, str] = field(default_factory=dict)
    # Gradients that were ready before the forward had returned, by a backward
    # in it; those of them whose gradient was removed again before it returned.
    in_forward: tuple[ReadyGradient, ...] = ()
    cleared: frozenset[str] = frozenset()
    # With a gradient that was ready, and that a hook has removed later in the
    # same backward.
    removed: frozenset[str] = frozenset()
    # Not trainable, or not there, at the beginning of the step.
    late: tuple[str, ...] = ()
    # With a gradient that no backward has put there.
    by_hand: tuple[str, ...] = ()
    # In the graph of the tensors that DDP passes through a function of its
    # own; None for `reachable`.
    passed: frozenset[str] | None = None
    # Number of the backward that goes through these tensors; None if the loss
    # is not computed from them.
    joins_at: int | None = 0
    # Classes of containers with results that DDP does not open.
    unopened: tuple[str, ...] = ()
    # A number for each parameter, which another one that takes over its name
    # does not have.
    serials: Mapping[str, int] = field(default_factory=dict)
    # Parameters without a shape, and sparse or quantized parameters and
    # buffers, at the beginning of the step.
    refused: tuple[str, ...] = ()
    # Of embeddings with sparse gradients, for which DDP expects them.
    sparse: frozenset[str] = frozenset()
    # Changed by each process for itself, with what does so: a hook, in the
    # backward, when gradients are not yet averaged; an embedding with
    # max_norm; the optimizer, which has parameters that DDP does not know.
    stepped: Mapping[str, str] = field(default_factory=dict)

    def counts(self, *, joint: bool = False) -> dict[str, int]:
        """How often the gradient of each parameter was ready, 0 included.

        Args:
            joint: Count :attr:`joint_ready`.
        """
        counts = dict.fromkeys(self.names, 0)
        gradients = self.joint_ready if joint else self.ready
        for gradient in self.ready if gradients is None else gradients:
            if gradient.name in counts:
                counts[gradient.name] += 1
        return counts

    @property
    def twice(self) -> tuple[str, ...]:
        """Parameters whose gradient was ready more than once."""
        return tuple(n for n, count in self.counts().items() if count > 1)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Parameters with a gradient, which a search does not find."""
        return tuple(
            name
            for name, count in self.counts().items()
            if count and name not in self.reachable
        )

    @property
    def outside_forward(self) -> tuple[str, ...]:
        """Hidden ones that no checkpoint hides: used outside ``forward``."""
        return tuple(n for n in self.hidden if n not in self.reentrant)

    def without_unused(self) -> 'StepUsage':
        """The same step, had the unused parameters not been there."""
        counts = self.counts()
        return dataclasses.replace(
            self,
            names=tuple(name for name in self.names if counts[name]),
            unused={},
            joint_ready=None,
            reran=(),
        )

    def without_reentrant(self) -> 'StepUsage':
        """The same step, had its checkpoints not been reentrant.

        Each gradient is then ready once, in the outer pass, and each
        parameter is found, those included whose checkpoint got an input
        without gradient.
        """
        lost = {
            name
            for name, unused in self.unused.items()
            if unused.reason is UnusedReason.CHECKPOINT_INPUT
        }
        ready = dict.fromkeys((g.name, g.backward) for g in self.ready)
        ready |= dict.fromkeys((name, 0) for name in lost)
        result = set(self.reentrant) | lost
        return dataclasses.replace(
            self,
            ready=tuple(ReadyGradient(n, 0, backward=b) for n, b in ready),
            reachable=self.reachable | result,
            passed=None if self.passed is None else self.passed | result,
            unused={
                name: unused
                for name, unused in self.unused.items()
                if name not in lost
            },
            reentrant={},
            joint_ready=None,
            reran=(),
            call_sites={},
        )


def trace_train_step(
    model: nn.Module,
    data: Any,
    backward: Callable[[Tensor], Any] | None = None,
) -> StepUsage:
    """:func:`trace_step` of a ``BaseModel``, which is not wrapped.

    It is put into training mode. ``data`` is as the data loader gives it.
    """
    model.train()
    data = model.data_preprocessor(data, True)
    return trace_step(
        model,
        lambda: run_training_forward(model, data),
        lambda out: model.parse_losses(out)[0],
        backward,
    )


def run_training_forward(model: nn.Module, data: Any) -> Any:
    """The forward of a training step on preprocessed data, as MMEngine's."""
    if isinstance(data, dict):
        return model(**data, mode='loss')
    return model(*data, mode='loss')


def trace_step(
    model: nn.Module,
    forward: Callable[[], Any],
    loss_of: Callable[[Any], Tensor],
    backward: Callable[[Tensor], Any] | None = None,
) -> StepUsage:
    """Run forward and backward once and record the use of parameters.

    The model is left as it was: gradients, buffers and random numbers
    included. Hooks on parameters, such as those of a DDP wrapper that is
    still in charge of the model, are run like in any backward.

    Args:
        model: The model, not wrapped.
        forward: Runs the model's forward and returns what a DDP wrapper
            would get from it.
        loss_of: Makes of that the scalar to differentiate.
        backward: What an optimizer wrapper makes of the scalar, if it is
            something else than ``loss.backward()``.

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
    with restored(model):
        model.zero_grad()
        return record_step(model, forward, loss_of, backward=backward)


@contextmanager
def restored(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer] = ()
) -> Iterator[None]:
    """Put a model back as it was: values, gradients, mode, random numbers.

    Optimizers forget what they remember of the steps, if they remembered
    nothing before; without one, no parameter is copied. Parameters that only
    an optimizer has are put back, too.
    """
    groups = [group for o in optimizers for group in o.param_groups]
    foreign = foreign_parameters(model, groups).values()
    grads = {p: p.grad for p in (*model.parameters(), *foreign)}
    kept = [b for b in model.buffers() if not is_lazy(b)]
    if optimizers:
        kept += grads
    values = {tensor: tensor.detach().clone() for tensor in kept}
    buffers = [(m, dict(m._buffers)) for m in model.modules()]
    # A module that TorchScript has frozen has no mode.
    modes = {m: m.training for m in model.modules() if hasattr(m, 'training')}
    fresh = [optimizer for optimizer in optimizers if not optimizer.state]
    state = get_rng_state()
    try:
        yield
    finally:
        set_rng_state(state)
        for module, mode in modes.items():
            module.training = mode
        for parameter in {*grads, *model.parameters()}:
            parameter.grad = grads.get(parameter)
        for module, own in buffers:
            if isinstance(module._buffers, dict):
                module._buffers.clear()
                module._buffers.update(own)
                continue
            # Compiled by TorchScript, which has them as attributes only.
            for name, buffer in own.items():
                setattr(module, name, buffer)
        for optimizer in fresh:
            optimizer.state.clear()
        with torch.no_grad():
            for tensor, value in values.items():
                if tensor.shape != value.shape:
                    tensor.resize_(value.shape)
                # An expanded one cannot be written to, and has not changed.
                if not is_same(tensor, value):
                    tensor.copy_(value)


def record_step(
    model: nn.Module,
    forward: Callable[[], Any],
    loss_of: Callable[[Any], Tensor],
    look: Callable[[Any, Tensor], None] | None = None,
    backward: Callable[[Tensor], Any] | None = None,
) -> StepUsage:
    """As :func:`trace_step`, but keep what the step changes.

    Gradients are added to those that the model had. ``look`` is called with
    the outputs and the loss before the backward.
    """
    parameters = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    names = tuple(parameters)
    lazy = tuple(name for name in names if is_lazy(parameters[name]))
    unsendable = unsendable_tensors(model)
    flow = ValueFlow(model, names)
    compiled = _has_compiled_parts(model)
    recorder = ReadyRecorder(model, parameters, watch_modules=not compiled)
    with torch.enable_grad(), recorder:
        # A compiled function would be another one within this mode.
        with nullcontext() if compiled else flow:
            outputs = forward()
            recorder.leave_forward()
            scaled = _scaled_tables(model, flow.module_calls)
            first = next_number()
            loss = loss_of(outputs)
        cleared = frozenset(
            gradient.name
            for gradient in recorder.in_forward
            if parameters[gradient.name].grad is None
        )
        if look is not None:
            look(outputs, loss)
        known = {id(parameter) for parameter in parameters.values()}
        late = {
            f'{name} (new)' if name in parameters else name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and id(parameter) not in known
        }
        recorder.watch_more(late | {n: parameters[n] for n in lazy})
        searched = graph_leaves(
            tensor
            # From which DDP searches for unused parameters.
            for tensor in torch_ddp._find_tensors(outputs)
            if tensor.grad_fn is not None
        )
        tensors = passed_tensors(outputs)
        passed = graph_leaves(tensors)
        joins = _joins(tensors, loss, first)
        # More is ready than with the loss alone, or in another order.
        is_joint = joins and not (
            graph_nodes(tensors) <= graph_nodes([loss])
            and passed <= graph_leaves([loss])
        )
        own = {id(p.grad) for p in model.parameters() if p.grad is not None}
        joins_at = recorder.num_backwards if joins else None
        recorder.retain_graphs = is_joint
        if loss.requires_grad:
            (backward or Tensor.backward)(loss)
        recorder.close()
        if joins_at is not None and recorder.num_backwards <= joins_at:
            joins_at = None
        watched = parameters | late
        ready = {gradient.name for gradient in recorder.ready}
        by_hand = tuple(
            name
            for name, parameter in watched.items()
            if parameter.grad is not None
            and name not in ready
            and id(parameter.grad) not in own
        )
        stepped = recorder.stepped
        if stepped:

            def run_against() -> None:
                (backward or Tensor.backward)(-loss_of(forward()))

            stepped = _changed_by_gradients(
                model, watched, stepped, run_against
            )
        again = None
        if is_joint and loss.requires_grad and not recorder.stepped:
            again = _record_joint(
                model, watched, joined(outputs), loss_of, backward
            )

    def names_of(leaves: set[int]) -> frozenset[str]:
        return frozenset(n for n, p in watched.items() if id(p) in leaves)

    unused = _explain_unused(parameters, recorder, flow, outputs, loss)
    if compiled or any(
        isinstance(module, torch.jit.ScriptModule)
        for module in model.modules()
    ):
        # Compiled functions are not looked into.
        vague = UnusedParameter(
            UnusedReason.NEVER_USED,
            detail='as far as is known of a model with compiled parts',
        )
        unused = {
            name: vague if use.reason is vague.reason else use
            for name, use in unused.items()
        }
    return StepUsage(
        names=names,
        ready=recorder.ready,
        reachable=names_of(searched),
        unused=unused,
        reentrant=recorder.reentrant | (again.reentrant if again else {}),
        module_calls=flow.module_calls,
        reran=tuple(recorder.reran),
        joint_ready=again.ready if again else None,
        call_sites={names[i]: site for i, site in flow.call_sites.items()},
        in_forward=recorder.in_forward,
        cleared=cleared,
        removed=frozenset(recorder.removed),
        late=tuple(late),
        by_hand=by_hand,
        passed=names_of(passed),
        joins_at=joins_at,
        unopened=unopened_containers(outputs),
        serials={
            name: _SERIALS.setdefault(parameter, next(_next_serial))
            for name, parameter in watched.items()
        },
        refused=(*lazy, *unsendable),
        sparse=sparse_parameters(model, parameters),
        stepped=dict.fromkeys(stepped, _STEPS) | scaled,
    )


def _changed_by_gradients(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    before: Mapping[str, Tensor],
    run_against: Callable[[], Any],
) -> list[str]:
    """Return the changed parameters whose new values depend on gradients.

    ``run_against`` runs the step again with gradients of the other sign. A
    change that stays the same, as weight decay in a hook, is the same in all
    processes. If the step cannot be run again, all changes count.
    """
    after = {n: p.detach().clone() for n, p in parameters.items()}
    same: set[str] = set()
    with restored(model), torch.no_grad(), ErrorCatcher(lambda error: None):
        model.zero_grad()
        for name, value in before.items():
            parameters[name].copy_(value)
        with torch.enable_grad():
            run_against()
        same = {n for n in before if is_same(parameters[n], after[n])}
    with torch.no_grad():
        for name, value in after.items():
            parameters[name].copy_(value)
    return [name for name in before if name not in same]


def _joins(tensors: list[Tensor], loss: Tensor, first: int) -> bool:
    """Whether a loss is computed from tensors by functions made later."""
    functions = {t.grad_fn for t in tensors if t.grad_fn is not None}
    if loss.grad_fn in functions:
        return True
    return any(
        node._sequence_nr() >= first
        and not functions.isdisjoint(n for n, _ in node.next_functions)
        for node in graph_nodes([loss])
    )


# A number of each parameter that no other one has, nor will have.
_SERIALS = WeakIdKeyDictionary()
_next_serial = itertools.count(1)


def lazy_tensors(model: nn.Module) -> tuple[str, ...]:
    """Parameters and buffers that have no shape yet."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return tuple(name for name, tensor in tensors if is_lazy(tensor))


def unsendable_tensors(model: nn.Module) -> tuple[str, ...]:
    """Parameters and buffers that DDP cannot send: sparse or quantized."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return tuple(
        name
        for name, tensor in tensors
        if not is_lazy(tensor)
        and (tensor.layout is not torch.strided or tensor.is_quantized)
    )


def sparse_parameters(
    model: nn.Module, parameters: Mapping[str, nn.Parameter]
) -> frozenset[str]:
    """Parameters for which DDP expects sparse gradients."""
    modules = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
        for parameter in module.parameters(recurse=False)
    }
    return frozenset(n for n, p in parameters.items() if id(p) in modules)


def _scaled_tables(model: nn.Module, calls: Mapping) -> dict[str, str]:
    """Tables of which a forward has scaled rows to max_norm, and not all."""
    return {
        f'{name}.weight': 'max_norm of the embedding scales the rows that a '
        'batch looks up, and each process has another batch'
        for name, module in model.named_modules()
        if name in calls
        and isinstance(module, nn.Embedding | nn.EmbeddingBag)
        and module.max_norm is not None
        and module.weight.detach().norm(module.norm_type, 1).max()
        > module.max_norm * (1 + 1e-5)
    }


def _has_compiled_parts(model: nn.Module) -> bool:
    """Whether a module, or a function that it uses, is compiled."""
    if 'torch._dynamo' not in sys.modules:
        return False
    optimized = sys.modules['torch._dynamo.eval_frame'].OptimizedModule
    for module in model.modules():
        values = list(vars(module).values())
        for kind in type(module).__mro__:
            values += vars(kind).values()
        if (
            isinstance(module, optimized)
            or getattr(module, '_compiled_call_impl', None) is not None
            or any(map(_is_compiled, values))
        ):
            return True
    return False


def _is_compiled(value: Any) -> bool:
    own = getattr(value, '__dict__', None)
    # A function that is never to be compiled has both.
    return (
        isinstance(own, Mapping)
        and '_torchdynamo_orig_callable' in own
        and '_torchdynamo_disable' not in own
    )


def _record_joint(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    outputs: Any,
    loss_of: Callable[[Any], Tensor],
    backward: Callable[[Tensor], Any] | None,
) -> ReadyRecorder:
    """Record a backward through all that was returned; keep no gradients."""
    grads = {
        p: None if p.grad is None else p.grad.clone()
        for p in parameters.values()
    }
    loss = loss_of(outputs)
    with ReadyRecorder(model, parameters, find_empty=True) as recorder:
        (backward or Tensor.backward)(loss)
    for parameter, grad in grads.items():
        parameter.grad = grad
    return recorder


def _explain_unused(
    parameters: Mapping[str, nn.Parameter],
    recorder: ReadyRecorder,
    flow: ValueFlow,
    outputs: Any,
    loss: Tensor,
) -> dict[str, UnusedParameter]:
    """Why parameters have no gradient."""
    ready = {gradient.name for gradient in recorder.ready}
    inside = {gradient.name for gradient in recorder.in_forward}
    by_key = {
        key: graph_leaves(tensors)
        for key, tensors in named_tensors(outputs).items()
    }
    cuts = flow.cut_before([loss, *all_tensors(outputs)])
    # Lost to a checkpoint on the way to the loss, whatever else was done.
    lost = {
        index: cut
        for index, cut in flow.cut_before([loss]).items()
        if cut.cause == 'checkpoint'
    }
    unused = {}
    for index, (name, parameter) in enumerate(parameters.items()):
        if name in ready:
            continue
        keys = [
            key for key, leaves in by_key.items() if id(parameter) in leaves
        ]
        cut = cuts.get(index)
        used = flow.is_used(index)
        if not used:
            inner = flow.no_grad_cuts.get(index)
            # What a checkpoint did to it is not why it is not in the loss.
            if cut is None or (inner and inner.cause != 'checkpoint'):
                cut = inner or cut
        location = detail = ''
        if name in inside:
            reason = UnusedReason.IN_FORWARD
        elif not parameter.requires_grad:
            reason = UnusedReason.FROZEN
        elif index in lost:
            reason = UnusedReason.CHECKPOINT_INPUT
            location = lost[index].location
        elif keys:
            reason = UnusedReason.NOT_IN_LOSS
            named = ', '.join(repr(key) for key in keys if key)
            detail = f'forward returns it in {named}' if named else ''
        elif cut is None:
            reason = UnusedReason.NEVER_USED
            if used:
                reason = UnusedReason.NOT_IN_LOSS
        else:
            location = cut.location
            reason = {
                'checkpoint': UnusedReason.NOT_IN_LOSS,
                'no_grad': UnusedReason.NO_GRAD,
                'function': UnusedReason.DETACHED,
            }[cut.cause]
            if cut.cause == 'function':
                detail = f'by {cut.function}'
        unused[name] = UnusedParameter(reason, location, detail)
    return unused
