"""Run one training step and record what happens in it."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from mmengine.optim import OptimWrapper
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_hook

from ....utils.training import get_rng_state, set_rng_state
from ...ddp import (
    StepUsage,
    all_tensors,
    find_outsiders,
    foreign_parameters,
    graph_leaves,
    graph_nodes,
    kept_tensors,
    name_stale_graphs,
    named_tensors,
    record_step,
    run_training_forward,
)
from ...findings import ErrorCatcher
from .strides import StridedMaps, watch_strides

_FOREIGN = (
    'the optimizer has them, and the model does not, so DDP does not average '
    'their gradients, and a checkpoint does not have them'
)


@dataclass(frozen=True)
class LossTerm:
    """One entry of what ``forward(mode='loss')`` returned."""

    name: str
    # The mean; a list counts with its sum.
    value: float
    finite: bool
    requires_grad: bool
    # Whether it is part of what is differentiated, which MMEngine decides
    # from the letters ``loss`` in the key.
    summed: bool
    # Those in its graph.
    parameters: frozenset[str] = frozenset()


@dataclass(frozen=True)
class KeptGraph:
    """Tensors with a graph that are on a module after the step."""

    # Module and attribute, as ``'head.memory[0]'``.
    location: str
    # Name of the function that made the last of them.
    function: str
    # Whether the next step's loss was computed from it.
    used_again: bool = False
    count: int = 1


@dataclass(frozen=True)
class StepRecord:
    """One step, numbered from 0 for each kind, that ran to its end."""

    kind: str
    step: int
    usage: StepUsage
    losses: tuple[LossTerm, ...] = ()
    # How often the forward of each trained batch norm ran, if it did.
    norms: Mapping[str, int] = dataclasses.field(default_factory=dict)
    kept: tuple[KeptGraph, ...] = ()
    # Functions in the graph of the outputs, over which a search for unused
    # parameters would walk in each step.
    nodes: int = 0
    # Parameters with a gradient that is not finite, in the order in which
    # the backward reached them.
    bad_gradients: tuple[str, ...] = ()
    # The first module whose output was not finite, where a loss is not.
    bad_module: str = ''
    # What gets gradients and is neither in the model nor in an optimizer.
    outsiders: tuple[str, ...] = ()
    # Trainable parameters that are in no optimizer, after the step; none
    # without an optimizer.
    idle: frozenset[str] = frozenset()
    # Height and width of the batch of images, if it is one tensor, and the
    # maps of parts that have strides for them.
    image_size: tuple[int, int] | None = None
    maps: tuple[StridedMaps, ...] = ()


class StepRun:
    """One step of a model in training mode, without a wrapper.

    ``kept`` are functions of the graphs that the step before has left behind,
    by their attribute; ``backward`` is that of :func:`own_backward`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        kept: Mapping[str, list[Any]] | None = None,
        backward: Callable[[Tensor], None] | None = None,
    ) -> None:
        self._model = model
        self._backward = backward
        self._optimizers = optimizers
        self._kept = kept or {}
        self._losses: tuple[LossTerm, ...] = ()
        self._nodes = 0
        self.phase = 'change to the training mode'
        self.used_again: set[str] = set()
        self.left: dict[str, list[Any]] = {}

    def run(self, batch: Any, kind: str, number: int) -> StepRecord:
        """Run it; an error comes from the part that ``phase`` names."""
        groups = [optimizer.param_groups for optimizer in self._optimizers]
        with (
            name_stale_graphs(self._model, batch),
            find_outsiders(self._model, groups, batch) as outsiders,
            watch_strides(self._model) as maps,
        ):
            record = self._run(batch, kind, number)
        return dataclasses.replace(
            record, outsiders=tuple(outsiders), maps=tuple(dict.fromkeys(maps))
        )

    def _run(self, batch: Any, kind: str, number: int) -> StepRecord:
        model, self.phase = self._model, 'data_preprocessor'
        groups = [g for o in self._optimizers for g in o.param_groups]
        for parameter in (*model.parameters(), *all_tensors(groups)):
            parameter.grad = None
        # Tensors with a graph, which have no copy, stay themselves.
        held = {id(t): t for t in all_tensors(batch) if t.grad_fn is not None}
        data = model.data_preprocessor(copy.deepcopy(batch, held), True)
        images = data.get('inputs') if isinstance(data, Mapping) else None
        state = get_rng_state()

        def forward() -> Any:
            self.phase = 'forward'
            return run_training_forward(model, data)

        def loss_of(outputs: Any) -> Tensor:
            loss = model.parse_losses(outputs)[0]
            # Gradient surgery has one loss for each task there.
            return loss.sum() if self._backward is None else loss

        usage = record_step(
            model, forward, loss_of, self._look, self._backward
        )
        norms = {
            name: usage.module_calls[name]
            for name, norm in model.named_modules()
            if isinstance(norm, _BatchNorm)
            and norm.training
            and name in usage.module_calls
        }
        bad_module = ''
        if not all(term.finite for term in self._losses):
            bad_module = self._first_bad_module(data, state)
        parameters = dict(model.named_parameters())
        bad_gradients = tuple(
            name
            for name in dict.fromkeys(f.name for f in usage.ready)
            if name in parameters
            and parameters[name].grad is not None
            and not is_finite(parameters[name].grad)
        )
        foreign = {
            name: _FOREIGN
            for name, parameter in foreign_parameters(model, groups).items()
            if parameter.grad is not None
        }
        usage = dataclasses.replace(usage, stepped=usage.stepped | foreign)
        held = set(map(id, all_tensors(groups)))
        self.phase = 'optimizer'
        if not bad_gradients and not bad_module:
            for optimizer in self._optimizers:
                optimizer.step()
        return StepRecord(
            kind=kind,
            step=number,
            usage=usage,
            losses=self._losses,
            norms=norms,
            kept=self._keep(),
            nodes=self._nodes,
            bad_gradients=bad_gradients,
            bad_module=bad_module,
            idle=frozenset(
                name
                for name, parameter in parameters.items()
                if held
                and parameter.requires_grad
                and id(parameter) not in held
            ),
            image_size=tuple(images.shape[-2:])
            if isinstance(images, Tensor)
            else None,
        )

    def _look(self, outputs: Any, loss: Tensor) -> None:
        """Between forward and backward."""
        nodes = graph_nodes(all_tensors(outputs))
        self._nodes = len(nodes)
        nodes |= graph_nodes([loss])
        self.used_again = {
            location
            for location, functions in self._kept.items()
            if not nodes.isdisjoint(functions)
        }
        self._losses = self._terms(outputs)
        self.phase = 'backward'

    def _terms(self, outputs: Any) -> tuple[LossTerm, ...]:
        names = {
            id(p): n
            for n, p in self._model.named_parameters()
            if p.requires_grad
        }
        terms = []
        for key, tensors in named_tensors(outputs).items():
            values = [t.detach().float() for t in tensors if t.numel()]
            if not values:
                continue
            leaves = graph_leaves(tensors)
            terms.append(
                LossTerm(
                    name=key,
                    value=float(sum(value.mean() for value in values)),
                    finite=all(is_finite(v) for v in values),
                    requires_grad=any(t.requires_grad for t in tensors),
                    summed='loss' in key,
                    parameters=frozenset(
                        name for leaf, name in names.items() if leaf in leaves
                    ),
                )
            )
        return tuple(terms)

    def _first_bad_module(self, data: Any, state: Any) -> str:
        """Run the forward again, and look at what each module returns."""
        names = {id(m): n for n, m in self._model.named_modules()}
        bad: list[str] = []

        def look(module: nn.Module, args: Any, output: Any) -> None:
            values = [t for t in all_tensors(output) if t.is_floating_point()]
            if not bad and not all(map(is_finite, values)):
                bad.append(names.get(id(module), ''))

        handle = register_module_forward_hook(look)
        after = get_rng_state()
        set_rng_state(state)
        failed: list[Exception] = []
        try:
            # What is known by the time it fails is enough.
            with ErrorCatcher(failed.append), torch.no_grad():
                run_training_forward(self._model, data)
        finally:
            set_rng_state(after)
            handle.remove()
        return bad[0] if bad else ''

    def _keep(self) -> tuple[KeptGraph, ...]:
        """What is left on the modules at the end."""
        kept = kept_tensors(self._model)
        self.left = {
            location: [tensor.grad_fn for tensor in tensors]
            for location, tensors in kept.items()
        }
        return tuple(
            KeptGraph(location, functions[-1].name(), count=len(functions))
            for location, functions in self.left.items()
        )


def is_finite(tensor: Tensor) -> bool:
    """Whether no value of a tensor of any layout is infinite or NaN."""
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if not tensor.is_floating_point() or not tensor.numel():
        return bool(tensor.isfinite().all())
    # One pass; NaN is both.
    return bool(torch.stack(tensor.aminmax()).isfinite().all())


def own_backward(optim_wrapper: Any) -> Callable[[Tensor], None] | None:
    """What an optimizer wrapper makes of a loss, if not one backward.

    Gradient surgery and the like override ``update_params`` or ``backward``.
    The optimizer does not step, and gradients stay.
    """
    if not isinstance(optim_wrapper, OptimWrapper):
        return None
    for name in ('update_params', 'backward'):
        method = getattr(type(optim_wrapper), name)
        package = method.__module__.partition('.')[0]
        if package not in ('mmengine', 'mmext'):
            return partial(_run_without_step, optim_wrapper, name)
    return None


def _run_without_step(
    optim_wrapper: OptimWrapper, name: str, loss: Tensor
) -> None:
    # It counts its calls.
    state = dict(vars(optim_wrapper))
    optim_wrapper.step = optim_wrapper.zero_grad = lambda **_: None
    try:
        getattr(optim_wrapper, name)(loss)
    finally:
        vars(optim_wrapper).clear()
        vars(optim_wrapper).update(state)
