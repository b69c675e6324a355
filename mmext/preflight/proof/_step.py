"""Run one training step and write down what happens in it."""

import copy
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .._graph import graph_leaves, graph_nodes, named_tensors, tensors_in
from ..step_usage import StepUsage
from ..tracing import record_step, run_training_forward
from .facts import GraphCost, KeptGraph, LossTerm, NormUse, StepProof
from .kept_graphs import kept_tensors

__all__ = ['STEP_ERRORS', 'StepRun', 'random_state', 'restored']

# What a step of a model may end with; a lack of memory is a RuntimeError.
STEP_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class StepRun:
    """One step of a model, without a wrapper.

    Args:
        model: A ``BaseModel`` in training mode.
        optimizers: Step after the backward.
        kept: Functions of the graphs that the step before has left behind,
            by place.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        kept: Mapping[str, list[Any]] | None = None,
    ) -> None:
        self._model = model
        self._optimizers = optimizers
        self._kept = kept or {}
        self._losses: tuple[LossTerm, ...] = ()
        self._cost = GraphCost()
        self.phase = 'data_preprocessor'
        self.used_again: set[str] = set()
        self.left: dict[str, list[Any]] = {}

    def run(self, batch: Any, kind: str, number: int) -> StepProof:
        """Run it.

        Args:
            batch: As the data loader gives it. It is not changed.
            kind: Of the batch.
            number: Of the step.

        Returns:
            What was seen.

        Raises:
            Exception: What the step raises; :attr:`phase` tells in which
                part of it.
        """
        model = self._model
        for parameter in model.parameters():
            parameter.grad = None
        data = model.data_preprocessor(copy.deepcopy(batch), True)
        updates = _norm_updates(model)
        state = random_state()

        def forward() -> Any:
            self.phase = 'forward'
            return run_training_forward(model, data)

        usage = record_step(model, forward, self._loss_of, self._look)
        norms = _norm_uses(model, usage, updates)
        bad_module = ''
        if not all(term.finite for term in self._losses):
            bad_module = self._first_bad_module(data, state)
        bad_gradients = self._bad_gradients(usage)
        self.phase = 'optimizer'
        if not bad_gradients and not bad_module:
            for optimizer in self._optimizers:
                optimizer.step()
        return StepProof(
            kind=kind,
            step=number,
            usage=usage,
            losses=self._losses,
            norms=norms,
            kept=self._keep(),
            cost=self._cost,
            bad_gradients=bad_gradients,
            bad_module=bad_module,
        )

    def _loss_of(self, outputs: Any) -> Tensor:
        # Gradient surgery has one loss for each task there.
        return self._model.parse_losses(outputs)[0].sum()

    def _look(self, outputs: Any, loss: Tensor) -> None:
        """Between forward and backward."""
        start = time.perf_counter()
        nodes = graph_nodes(tensors_in(outputs))
        taken = 1000 * (time.perf_counter() - start)
        self._cost = GraphCost(len(nodes), taken)
        nodes |= graph_nodes([loss])
        self.used_again = {
            place
            for place, functions in self._kept.items()
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
                    finite=all(bool(v.isfinite().all()) for v in values),
                    requires_grad=any(t.requires_grad for t in tensors),
                    summed='loss' in key,
                    parameters=frozenset(
                        name for leaf, name in names.items() if leaf in leaves
                    ),
                )
            )
        return tuple(terms)

    def _bad_gradients(self, usage: StepUsage) -> tuple[str, ...]:
        parameters = dict(self._model.named_parameters())
        return tuple(
            name
            for name in dict.fromkeys(f.name for f in usage.firings)
            if parameters[name].grad is not None
            and not parameters[name].grad.isfinite().all()
        )

    def _first_bad_module(self, data: Any, state: Any) -> str:
        """Run the forward again, and look at what each module returns."""
        names = {id(m): n for n, m in self._model.named_modules()}
        bad: list[str] = []

        def look(module: nn.Module, args: Any, output: Any) -> None:
            if not bad and not _is_finite(output):
                bad.append(names[id(module)])

        handles = [
            module.register_forward_hook(look)
            for module in self._model.modules()
        ]
        after = random_state()
        set_random_state(state)
        try:
            with torch.no_grad():
                run_training_forward(self._model, data)
        except STEP_ERRORS:
            # What is known by then is enough.
            return bad[0] if bad else ''
        finally:
            set_random_state(after)
            for handle in handles:
                handle.remove()
        return bad[0] if bad else ''

    def _keep(self) -> tuple[KeptGraph, ...]:
        """What is left on the modules at the end."""
        kept = kept_tensors(self._model)
        self.left = {
            place: [tensor.grad_fn for tensor in tensors]
            for place, tensors in kept.items()
        }
        return tuple(
            KeptGraph(place, functions[-1].name(), count=len(functions))
            for place, functions in self.left.items()
        )


def _is_finite(output: Any) -> bool:
    return all(
        bool(tensor.isfinite().all())
        for tensor in tensors_in(output)
        if tensor.is_floating_point()
    )


def _norms(model: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            yield name, module


def _norm_updates(model: nn.Module) -> dict[str, int]:
    return {
        name: int(norm.num_batches_tracked)
        for name, norm in _norms(model)
        if norm.num_batches_tracked is not None
    }


def _norm_uses(
    model: nn.Module, usage: StepUsage, before: Mapping[str, int]
) -> tuple[NormUse, ...]:
    after = _norm_updates(model)
    return tuple(
        NormUse(
            name=name,
            kind=type(norm).__name__,
            calls=usage.module_calls[name],
            updates=after.get(name, 0) - before.get(name, 0),
        )
        for name, norm in _norms(model)
        if usage.module_calls.get(name)
    )


def random_state() -> tuple:
    """State of the random numbers of Python, NumPy and PyTorch's CPU."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_random_state(state: tuple) -> None:
    """Put back what :func:`random_state` returned."""
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


@contextmanager
def restored(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer] = ()
) -> Iterator[None]:
    """Put a model back as it was: values, gradients, mode, random numbers.

    Args:
        model: The model. Its parameters are copied where there is an
            optimizer to change them.
        optimizers: They forget what they remember of the steps, if they
            remembered nothing before.
    """
    grads = {p: p.grad for p in model.parameters()}
    values = {b: b.detach().clone() for b in model.buffers()}
    if optimizers:
        values |= {p: p.detach().clone() for p in model.parameters()}
    buffers = [(m, dict(m._buffers)) for m in model.modules()]
    modes = {module: module.training for module in model.modules()}
    fresh = [optimizer for optimizer in optimizers if not optimizer.state]
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)
        for module, mode in modes.items():
            module.training = mode
        for parameter, grad in grads.items():
            parameter.grad = grad
        for module, own in buffers:
            module._buffers.update(own)
        for optimizer in fresh:
            optimizer.state.clear()
        with torch.no_grad():
            for tensor, value in values.items():
                tensor.copy_(value)
