"""Train a model for a few steps, alone, and record what it does."""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from mmengine.optim import OptimWrapperDict
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ....utils.training import merge_groups
from ...config import find_component
from ...ddp import kept_tensors
from ...findings import ErrorCatcher
from .crashes import explain_crash
from .facts import Crash, DryRun, OptimizerFacts, StepRecord
from .options import ConfigOptions
from .step import (
    StepRun,
    error_place,
    modules_of_error,
    own_backward,
    restored,
)

_SIMILAR = 0.6
# Constructors that read ``custom_keys`` as MMEngine documents it.
_READ_CUSTOM_KEYS = (
    'DefaultOptimWrapperConstructor',
    'mmext.MergedOptimWrapperConstructor',
)


def optimizer_facts(
    model: nn.Module,
    optim_wrapper: Any,
    cfg: Mapping[str, Any] | None = None,
) -> OptimizerFacts:
    """How the groups of an optimizer fit a model and its config."""
    groups = [
        group
        for wrapper in wrappers_of(optim_wrapper)
        for group in wrapper.optimizer.param_groups
    ]
    rates: dict[int, float] = {}
    for group in groups:
        for parameter in group['params']:
            rate = float(group.get('lr', 1.0))
            rates[id(parameter)] = max(rates.get(id(parameter), 0.0), rate)
    default = _of_default_constructor(cfg)
    named = list(model.named_parameters())
    trainable = [(n, p) for n, p in named if p.requires_grad]
    unmatched, shadowed = {}, ()
    paramwise = (default or {}).get('paramwise_cfg')
    keys = []
    if isinstance(paramwise, Mapping):
        keys = [str(key) for key in paramwise.get('custom_keys') or {}]
    if keys:
        unmatched, shadowed = custom_key_use(keys, [n for n, _ in trainable])
        frozen = [n for n, p in named if not p.requires_grad]
        # A key for what is frozen has no effect, but is no typing error.
        unmatched = {
            key: near
            for key, near in unmatched.items()
            if not any(key in name for name in frozen)
        }
    return OptimizerFacts(
        missing=tuple(n for n, p in trainable if id(p) not in rates),
        frozen=tuple(
            n for n, p in named if not p.requires_grad and id(p) in rates
        ),
        rate_zero=tuple(n for n, p in trainable if rates.get(id(p)) == 0.0),
        unmatched=unmatched,
        shadowed=shadowed,
        groups=len(groups),
        merged=sum(
            len(merge_groups(wrapper.optimizer.param_groups))
            for wrapper in wrappers_of(optim_wrapper)
        ),
        mergeable=default is not None,
    )


def wrappers_of(optim_wrapper: Any) -> list[Any]:
    """The wrapper of each optimizer."""
    if isinstance(optim_wrapper, OptimWrapperDict):
        return list(optim_wrapper.optim_wrappers.values())
    return [optim_wrapper]


def _of_default_constructor(
    cfg: Mapping[str, Any] | None,
) -> Mapping[str, Any] | None:
    """The config's optim_wrapper, if MMEngine's own constructor reads it."""
    section = (cfg or {}).get('optim_wrapper')
    if not isinstance(section, Mapping):
        return None
    kind = section.get('constructor')
    if kind is not None:
        scope = (cfg or {}).get('default_scope') or 'mmengine'
        kind = find_component(kind, (OPTIM_WRAPPER_CONSTRUCTORS,), scope)
        known = map(OPTIM_WRAPPER_CONSTRUCTORS.get, _READ_CUSTOM_KEYS)
        readers = [constructor.add_params for constructor in known]
        if getattr(kind, 'add_params', None) not in readers:
            return None
    return section


def custom_key_use(
    keys: Iterable[str], names: Iterable[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What MMEngine's constructor makes of ``custom_keys``.

    A key applies where it is part of a trainable parameter's name; of several,
    the longest. Returns keys that fit nothing, with the nearest real name or
    an empty string; and keys that fit, but never as the longest.
    """
    # A parameter of the model itself is called '.name' there.
    names = [name if '.' in name else f'.{name}' for name in names]
    ordered = sorted(sorted(keys), key=len, reverse=True)
    fits = {key: [n for n in names if key in n] for key in ordered}
    taken = {
        next((key for key in ordered if key in name), '') for name in names
    }
    unmatched = {key: _nearest(key, names) for key in ordered if not fits[key]}
    shadowed = tuple(k for k in ordered if fits[k] and k not in taken)
    return unmatched, shadowed


def _nearest(key: str, names: Iterable[str]) -> str:
    """The part of a name that a key resembles most."""
    length = key.count('.') + 1
    candidates = {}
    for name in names:
        parts = name.strip('.').split('.')
        for start in range(max(len(parts) - length + 1, 0)):
            candidates['.'.join(parts[start : start + length])] = None
    near = difflib.get_close_matches(key, list(candidates), 1, _SIMILAR)
    return near[0] if near else ''


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
        cfg: The config, for ``optim_wrapper.paramwise_cfg``.
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
    facts = None
    config = ConfigOptions(cfg) if cfg is not None else None
    if optim_wrapper is not None:
        facts = optimizer_facts(model, optim_wrapper, cfg)
    lazy = tuple(n for n, p in model.named_parameters() if is_lazy(p))
    if lazy:
        # They cannot be put back as they were.
        return DryRun(steps={}, optimizer=facts, lazy=lazy, config=config)
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
        optimizer=facts,
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
