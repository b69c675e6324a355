"""Train a model for a few steps, alone, and record what it does."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mmengine.optim import OptimWrapperDict
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ...ddp import kept_tensors
from ...findings import ErrorCatcher
from .crashes import explain_crash
from .facts import Crash, DryRun, StepRecord
from .options import ConfigOptions
from .step import (
    StepRun,
    error_place,
    modules_of_error,
    own_backward,
    restored,
)


def wrappers_of(optim_wrapper: Any) -> list[Any]:
    """The wrapper of each optimizer."""
    if isinstance(optim_wrapper, OptimWrapperDict):
        return list(optim_wrapper.optim_wrappers.values())
    return [optim_wrapper]


def dry_run_model(
    model: nn.Module,
    batches: Mapping[str, Sequence[Any]],
    *,
    optim_wrapper: Any = None,
    cfg: Mapping[str, Any] | None = None,
    steps: int = 2,
    later_steps: int | None = None,
) -> DryRun:
    """Run steps of a model and record what decides about a training.

    No process group is needed, and no wrapper: the forward, the backward and a
    step of the optimizer are run here. A batch with which the model fails ends
    that kind of batch, and nothing else. Parameters, buffers, gradients and
    random numbers are put back; a graph that a module has kept is not.

    Args:
        model: A ``BaseModel``, not wrapped, with its weights initialised.
        batches: Kind of batch, such as ``'normal'`` or ``'empty'``, -> what
            the data loader would give, one for each step. Fewer than
            ``steps`` are used again.
        optim_wrapper: Built for the model; None for no optimizer.
        cfg: The config, for the remedies of findings.
        steps: Of each kind, at least 2: a graph that one step keeps fails in
            the next.
        later_steps: Of the kinds after the first one; None for as many.
    """
    if not hasattr(model, 'parse_losses'):
        raise TypeError(
            'model must be a BaseModel without a wrapper, as it is before '
            f'Runner.wrap_model, got {type(model).__name__}'
        )
    optimizers = []
    if optim_wrapper is not None:
        optimizers = [w.optimizer for w in wrappers_of(optim_wrapper)]
    records: dict[str, tuple[StepRecord, ...]] = {}
    crashes = []
    config = ConfigOptions(cfg) if cfg is not None else None
    lazy = tuple(n for n, p in model.named_parameters() if is_lazy(p))
    if lazy:
        # They cannot be put back as they were.
        return DryRun(steps={}, lazy=lazy, config=config)
    with restored(model, optimizers):
        for index, (kind, given) in enumerate(batches.items()):
            number = steps
            if index and later_steps:
                number, given = later_steps, given[:later_steps]
            # Each kind begins with the same weights and random numbers.
            with restored(model, optimizers):
                model.train()
                records[kind], crash = _run_kind(
                    model,
                    kind,
                    given,
                    number,
                    optimizers,
                    own_backward(optim_wrapper),
                    cfg,
                )
            crashes += [crash] if crash is not None else []
            # What one kind has left must not fail with the next one.
            for tensors in kept_tensors(model).values():
                for tensor in tensors:
                    if not tensor._is_view():
                        tensor.detach_()
    weights = {
        name: getattr(module, 'loss_weight', None)
        for name, module in model.named_modules()
    }
    return DryRun(
        steps=records,
        crashes=tuple(crashes),
        zero_weights=tuple(
            name
            for name, weight in weights.items()
            if isinstance(weight, int | float) and weight == 0
        ),
        config=config,
    )


def _run_kind(
    model: nn.Module,
    kind: str,
    batches: Sequence[Any],
    steps: int,
    optimizers: Sequence[Any],
    backward: Callable[[Tensor], None] | None,
    cfg: Mapping[str, Any] | None,
) -> tuple[tuple[StepRecord, ...], Crash | None]:
    """The steps of one kind of batch, up to the first that fails."""
    done: list[StepRecord] = []
    left: dict[str, list[Any]] = {}
    for number in range(max(steps, len(batches))):
        run = StepRun(model, optimizers, left, backward)
        batch = batches[number % len(batches)]
        failed: list[Exception] = []
        with ErrorCatcher(failed.append):
            record = run.run(batch, kind, number)
        if done and run.used_again:
            # Known only now.
            kept = tuple(
                dataclasses.replace(g, used_again=g.place in run.used_again)
                for g in done[-1].kept
            )
            done[-1] = dataclasses.replace(done[-1], kept=kept)
        for error in failed:
            return tuple(done), Crash(
                kind=kind,
                step=number,
                phase=run.phase,
                error=type(error).__name__,
                message=str(error),
                modules=modules_of_error(error, model),
                place=error_place(error),
                cause=explain_crash(
                    model,
                    partial(run.run, batch, kind, number),
                    error,
                    cfg,
                ),
            )
        done.append(record)
        left = run.left
    return tuple(done), None
