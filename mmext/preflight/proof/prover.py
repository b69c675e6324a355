"""Train a model for a few steps, alone, and write down what it does."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.optim import OptimWrapperDict
from torch import Tensor, nn

from ._crash_place import error_place, modules_of_error
from ._step import STEP_ERRORS, StepRun, restored
from .config_options import ConfigOptions
from .facts import Crash, Proof, StepProof
from .kept_graphs import kept_tensors
from .optimizer_facts import optimizer_facts

__all__ = ['prove']

MIN_STEPS = 2


def prove(
    model: nn.Module,
    batches: Mapping[str, Sequence[Any]],
    *,
    optim_wrapper: Any = None,
    cfg: Mapping[str, Any] | None = None,
    steps: int = MIN_STEPS,
    later_steps: int | None = None,
) -> Proof:
    """Run steps of a model and record what decides about a training.

    No process group is needed, and no wrapper: the forward, the backward and
    a step of the optimizer are run here. A batch with which the model fails
    ends that kind of batch, and nothing else. Parameters, buffers, gradients
    and random numbers are put back; a graph that a module has kept is not.

    Args:
        model: A ``BaseModel``, not wrapped, with its weights initialised.
        batches: Kind of batch, such as ``'normal'`` or ``'empty'``, -> what
            the data loader would give, one for each step. Fewer than
            ``steps`` are used again.
        optim_wrapper: Built for the model; None for no optimizer.
        cfg: The config, for ``optim_wrapper.paramwise_cfg``.
        steps: Of each kind, at least 2.
        later_steps: Of the kinds after the first one, at least 1; None for
            as many. One tells what is used with that kind, and what a step
            leaves behind is seen in the first kind.

    Returns:
        What was seen.

    Raises:
        TypeError: If the model is wrapped, or has no ``parse_losses``.
        ValueError: If ``steps`` is under 2, or a kind has no batch.

    Examples:
        >>> import torch
        >>> from mmengine.model import BaseModel
        >>> class Net(BaseModel):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.used, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)
        ...
        ...     def forward(self, inputs, mode='loss'):
        ...         return {'loss': self.used(inputs).square().mean()}
        >>> proof = prove(Net(), {'normal': [{'inputs': torch.ones(1, 2)}]})
        >>> sorted(proof.steps['normal'][0].usage.unused)
        ['unused.bias', 'unused.weight']
    """
    _check(model, batches, steps)
    optimizers = _optimizers(optim_wrapper)
    found: dict[str, tuple[StepProof, ...]] = {}
    crashes = []
    facts = None
    if optim_wrapper is not None:
        facts = optimizer_facts(model, optim_wrapper, cfg)
    with restored(model, optimizers):
        for place, (kind, given) in enumerate(batches.items()):
            number = steps
            if place and later_steps:
                number, given = later_steps, given[:later_steps]
            # Each kind begins with the same weights and random numbers.
            with restored(model, optimizers):
                model.train()
                found[kind], crash = _prove_kind(
                    model, kind, given, number, optimizers
                )
            crashes += [crash] if crash is not None else []
            _let_graphs_go(model)
    return Proof(
        steps=found,
        crashes=tuple(crashes),
        optimizer=facts,
        sync_norms=tuple(
            name
            for name, module in model.named_modules()
            if isinstance(module, nn.SyncBatchNorm)
        ),
        zero_weights=tuple(
            name
            for name, module in model.named_modules()
            if _is_zero(getattr(module, 'loss_weight', None))
        ),
        config=ConfigOptions(cfg) if cfg is not None else None,
    )


def _check(
    model: nn.Module, batches: Mapping[str, Sequence[Any]], steps: int
) -> None:
    if not hasattr(model, 'parse_losses'):
        raise TypeError(
            'model must be a BaseModel without a wrapper, as it is before '
            f'Runner.wrap_model, got {type(model).__name__}'
        )
    if steps < MIN_STEPS:
        raise ValueError(
            f'steps must be at least {MIN_STEPS}, as a graph kept by one step '
            f'fails in the next, got {steps}'
        )
    empty = [kind for kind, given in batches.items() if not len(given)]
    if empty or not batches:
        raise ValueError(
            'batches must have at least one batch of each kind, got none of '
            f'{", ".join(map(repr, empty)) or "any"}'
        )


def _optimizers(optim_wrapper: Any) -> list[Any]:
    if optim_wrapper is None:
        return []
    if isinstance(optim_wrapper, OptimWrapperDict):
        wrappers = optim_wrapper.optim_wrappers.values()
        return [wrapper.optimizer for wrapper in wrappers]
    return [optim_wrapper.optimizer]


def _is_zero(weight: Any) -> bool:
    return isinstance(weight, int | float) and weight == 0


def _prove_kind(
    model: nn.Module,
    kind: str,
    batches: Sequence[Any],
    steps: int,
    optimizers: Sequence[Any],
) -> tuple[tuple[StepProof, ...], Crash | None]:
    """The steps of one kind of batch, up to the first that fails."""
    done: list[StepProof] = []
    left: dict[str, list[Any]] = {}
    for number in range(max(steps, len(batches))):
        run = StepRun(model, optimizers, left)
        batch = batches[number % len(batches)]
        crash = None
        try:
            proof = run.run(batch, kind, number)
        except STEP_ERRORS as error:
            crash = Crash(
                kind=kind,
                step=number,
                phase=run.phase,
                error=type(error).__name__,
                message=str(error),
                modules=modules_of_error(error, model),
                place=error_place(error),
            )
        if done and run.used_again:
            done[-1] = _with_use(done[-1], run.used_again)
        if crash is not None:
            return tuple(done), crash
        done.append(proof)
        left = run.left
    return tuple(done), None


def _with_use(proof: StepProof, places: set[str]) -> StepProof:
    """The step, had it been known what the next one uses."""
    kept = tuple(
        dataclasses.replace(each, used_again=each.place in places)
        for each in proof.kept
    )
    return dataclasses.replace(proof, kept=kept)


def _let_graphs_go(model: nn.Module) -> None:
    """What one kind of batch has left must not fail with the next one."""
    for tensors in kept_tensors(model).values():
        for tensor in tensors:
            _detach(tensor)


def _detach(tensor: Tensor) -> None:
    if not tensor._is_view():
        tensor.detach_()
