"""A changed schedule, recomputed on resume as if it had never been another.

The state of MMEngine's schedulers holds their settings, too, so that of a
checkpoint would win over the config: a longer training would go on with the
end of the shorter one, often at learning rate 0. Most of the schedulers are
recursive, value after value, and several change one value in turn. So the
only way to the value of a step is to take all steps before it, which is done
here on copies, with the present settings. The values are then, bit by bit,
those of a training with this config that was not interrupted.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Any

import torch
from mmengine.optim import (
    OneCycleParamScheduler,
    OptimWrapper,
    ReduceOnPlateauParamScheduler,
    _ParamScheduler,
)

# Attributes of a scheduler that are no settings.
_PROGRESS = {
    '_global_step',
    '_last_value',
    'base_values',
    'best',
    'cooldown_counter',
    'last_step',
    'min_values',
    'num_bad_epochs',
    'optimizer',
    'verbose',
}
_PLATEAU_PROGRESS = (
    '_global_step',
    'best',
    'cooldown_counter',
    'last_step',
    'num_bad_epochs',
)
# What OneCycle notes in parameter groups, from settings of its own.
_LIMITS = ('max_', 'min_')
# Settings with which the best value so far means nothing.
_PLATEAU_MEASURE = {'monitor', 'rule', 'threshold_rule'}


@dataclass(frozen=True)
class Position:
    """Steps that schedulers have taken.

    Args:
        iters: Steps of those that go by iterations.
        epochs: Steps of those that go by epochs.
        epoch_length: Iterations of an epoch.
    """

    iters: int
    epochs: int
    epoch_length: int


@dataclass
class ScheduleChange:
    """What becomes of the schedulers of one optimizer.

    Args:
        settings: ``(index, setting, before, now)`` for each changed setting.
        error: Why the schedule cannot be recomputed, if so.
        groups: New values of each parameter group; empty if they stay.
        states: New state of each scheduler; empty if they stay.
        values: ``(name, before, now)`` of values of the first group.
    """

    settings: list[tuple[int, str, Any, Any]] = field(default_factory=list)
    error: str = ''
    groups: list[dict[str, Any]] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    values: list[tuple[str, float, float]] = field(default_factory=list)

    def apply(
        self, wrapper: OptimWrapper, schedulers: Sequence[_ParamScheduler]
    ) -> None:
        """Set the values; after the checkpoint was loaded."""
        for group, new in zip(wrapper.param_groups, self.groups, strict=False):
            group.update(new)
        for scheduler, state in zip(schedulers, self.states, strict=False):
            if state:
                # What the checkpoint's scheduler has and this one has not.
                for key in {*scheduler.__dict__} - {'optimizer', *state}:
                    delattr(scheduler, key)
                scheduler.__dict__.update(state)


class _StandIn(torch.optim.Optimizer):
    """Parameter groups without a model."""

    _global_step = 0  # no warning that the optimizer has not stepped

    def step(self, closure: Any = None) -> None:
        """Nothing to do."""

    step._with_counter = True


def without_functions(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a scheduler, to be read without running code."""
    return {key: value for key, value in state.items() if not callable(value)}


def settings_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in the state of a scheduler; functions by their names."""
    return {
        key: value.__name__ if callable(value) else value
        for key, value in state.items()
        if key not in _PROGRESS
    }


def _changed(
    saved: Mapping[str, Any],
    functions: Mapping[str, str],
    now: _ParamScheduler,
) -> list[tuple[str, Any, Any]]:
    """``(setting, before, now)`` of a scheduler."""
    before = {**settings_of(saved), **functions}
    present = settings_of(now.__dict__)
    if not functions:
        # Saved by MMEngine's runner, or another release.
        present = {
            key: value
            for key, value in present.items()
            if key in before or not callable(getattr(now, key))
        }
    return [
        (key, before.get(key, '-'), present.get(key, '-'))
        for key in sorted({*before, *present})
        # Other releases of MMEngine know other settings.
        if before.get(key) != present.get(key)
    ]


def _values(
    groups: Sequence[Mapping], schedulers: Sequence[_ParamScheduler]
) -> list[dict[str, Any]]:
    """What schedulers read and write in parameter groups."""
    keys = {
        f'{prefix}{scheduler.param_name}'
        for scheduler in schedulers
        for prefix in ('', 'initial_', 'max_', 'min_')
    }
    if any(getattr(scheduler, 'use_betas', False) for scheduler in schedulers):
        keys.add('betas')
    return [
        {key: group[key] for key in keys if key in group} for group in groups
    ]


def _copies(
    schedulers: Sequence[_ParamScheduler],
    bases: Sequence[Sequence[float] | None],
    groups: Sequence[Mapping[str, Any]],
    defaults: Mapping[str, Any],
) -> tuple[list[_ParamScheduler], _StandIn, list[int]]:
    """Schedulers before their first step, on groups without parameters.

    Groups that are alike are one; also returns where each one is.
    """
    groups = [dict(group) for group in groups]
    seen: set[str] = set()
    for scheduler, base in zip(schedulers, bases, strict=True):
        name = scheduler.param_name
        is_first = name not in seen
        if base is None:
            continue
        seen.add(name)
        for group, value in zip(groups, base, strict=True):
            if is_first:
                group[name] = value
            if is_first or isinstance(scheduler, OneCycleParamScheduler):
                group[f'initial_{name}'] = value
            if is_first and getattr(scheduler, 'use_betas', False):
                group['betas'] = (value, group['betas'][1])
    kinds: dict[str, int] = {}
    where = []
    for index, group in enumerate(groups):
        key = repr(
            (sorted(group.items()), [base and base[index] for base in bases])
        )
        where.append(kinds.setdefault(key, len(kinds)))
    firsts = [where.index(kind) for kind in range(len(kinds))]
    stand_in = _StandIn(
        [{'params': [torch.zeros(1)], **groups[index]} for index in firsts],
        dict(defaults),
    )
    result = []
    for scheduler, base in zip(schedulers, bases, strict=True):
        fresh = copy.copy(scheduler)
        fresh.__dict__.update(
            optimizer=stand_in, last_step=-1, _global_step=-1, verbose=False
        )
        if base is None:
            fresh._global_step = 0
        else:
            fresh.base_values = [base[index] for index in firsts]
        result.append(fresh)
    return result, stand_in, where


def _replay(schedulers: Sequence[_ParamScheduler], position: Position) -> None:
    """Take the steps up to a position, in the order of a training."""
    for scheduler in schedulers:
        if not isinstance(scheduler, ReduceOnPlateauParamScheduler):
            scheduler.step()  # as its constructor does
    by_epoch = [item for item in schedulers if item.by_epoch]
    by_iter = [item for item in schedulers if not item.by_epoch]
    done = 0
    for epoch in range(position.epochs + 1):
        end = position.iters
        if epoch < position.epochs:
            end = min(end, (epoch + 1) * position.epoch_length)
        while done < end and by_iter:
            for scheduler in by_iter:
                scheduler.step()
            done += 1
        if epoch < position.epochs:
            for scheduler in by_epoch:
                scheduler.step()


def _run(
    schedulers: Sequence[_ParamScheduler],
    bases: Sequence[Sequence[float] | None],
    groups: Sequence[Mapping[str, Any]],
    defaults: Mapping[str, Any],
    position: Position,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Values of all groups and states of all schedulers at a position."""
    copies, stand_in, where = _copies(schedulers, bases, groups, defaults)
    _replay(copies, position)
    values = _values(stand_in.param_groups, copies)
    states = []
    for scheduler, fresh in zip(schedulers, copies, strict=True):
        state = dict(fresh.__dict__)
        state['verbose'] = scheduler.verbose
        for key in ('base_values', '_last_value'):
            if key in state:
                state[key] = [state[key][kind] for kind in where]
        del state['optimizer']
        states.append(state)
    return [dict(values[kind]) for kind in where], states


def _as_saved(
    present: _ParamScheduler, state: Mapping[str, Any], kind: type
) -> _ParamScheduler:
    """A scheduler with the settings of the checkpoint."""
    result = object.__new__(kind)
    if kind is type(present):
        # Functions are not in the state.
        result.__dict__.update(present.__dict__)
    result.__dict__.update(state)
    return result


def change_schedule(
    wrapper: OptimWrapper,
    schedulers: Sequence[_ParamScheduler],
    saved: Sequence[Mapping[str, Any]],
    kinds: Sequence[tuple[type | None, Mapping[str, str]]],
    saved_groups: Sequence[Mapping[str, Any]],
    before: Position,
    now: Position,
) -> ScheduleChange:
    """Compare schedulers with their state in a checkpoint, and recompute.

    Nothing is changed by it; see :meth:`ScheduleChange.apply`.

    Args:
        wrapper: The optimizer, as the config makes it.
        schedulers: Its schedulers, before their first step.
        saved: Their states in the checkpoint.
        kinds: Their classes and functions there; None if not known.
        saved_groups: Parameter groups of the checkpoint.
        before: Where the training was, as it counted.
        now: The same place, as the present config counts.
    """
    result = ScheduleChange()
    moved = []
    for index, (scheduler, state, (kind, functions)) in enumerate(
        zip(schedulers, saved, kinds, strict=True)
    ):
        changed = _changed(state, functions, scheduler)
        if kind not in (None, type(scheduler)):
            changed.insert(
                0, ('type', kind.__name__, type(scheduler).__name__)
            )
        result.settings += [(index, *change) for change in changed]
        if changed and not (
            isinstance(scheduler, ReduceOnPlateauParamScheduler)
            and kind in (None, type(scheduler))
        ):
            moved.append(index)
    if not result.settings:
        return result
    if not moved:
        result.states = [
            _keep_plateau(scheduler, state, result.settings, index)
            if isinstance(scheduler, ReduceOnPlateauParamScheduler)
            else {}
            for index, (scheduler, state) in enumerate(
                zip(schedulers, saved, strict=True)
            )
        ]
        return result
    old = [
        _as_saved(scheduler, state, kind or type(scheduler))
        for scheduler, state, (kind, _) in zip(
            schedulers, saved, kinds, strict=True
        )
    ]
    _recompute(result, wrapper, schedulers, old, saved_groups, before, now)
    return result


def _recompute(
    result: ScheduleChange,
    wrapper: OptimWrapper,
    schedulers: Sequence[_ParamScheduler],
    old: Sequence[_ParamScheduler],
    saved_groups: Sequence[Mapping[str, Any]],
    before: Position,
    now: Position,
) -> None:
    """Fill in the values and states of the present schedule."""
    known = _values(saved_groups, old)
    old_bases = [getattr(scheduler, 'base_values', None) for scheduler in old]
    explained, _ = _run(old, old_bases, known, wrapper.defaults, before)
    names = sorted(
        {
            scheduler.param_name
            for scheduler in (*schedulers, *old)
            if not isinstance(scheduler, ReduceOnPlateauParamScheduler)
        }
    )
    result.error = _unexplained(known, explained, names)
    if result.error:
        return
    bases = [_base_values(scheduler, old) for scheduler in schedulers]
    groups = [
        {**given, **{key: own[key] for key in own if key[:4] in _LIMITS}}
        for own, given in zip(
            _values(wrapper.param_groups, schedulers),
            _values(saved_groups, schedulers),
            strict=True,
        )
    ]
    result.groups, result.states = _run(
        schedulers, bases, groups, wrapper.defaults, now
    )
    for index, (scheduler, state) in enumerate(
        zip(schedulers, old, strict=True)
    ):
        if isinstance(scheduler, ReduceOnPlateauParamScheduler) and isinstance(
            state, ReduceOnPlateauParamScheduler
        ):
            result.states[index] = _keep_plateau(
                scheduler, state.__dict__, result.settings, index
            )
    result.values = [
        (name, saved_groups[0].get(name), result.groups[0].get(name))
        for name in names
        if known[0].get(name) != result.groups[0].get(name)
    ]


def _base_values(
    scheduler: _ParamScheduler,
    old: Sequence[_ParamScheduler],
) -> list[float] | None:
    """Values from which a scheduler begins: those of the checkpoint."""
    if isinstance(scheduler, ReduceOnPlateauParamScheduler):
        return None
    if isinstance(scheduler, OneCycleParamScheduler):
        return scheduler.base_values  # from its own setting
    name = scheduler.param_name
    for other in old:
        if (
            other.param_name == name
            and hasattr(other, 'base_values')
            and not isinstance(other, OneCycleParamScheduler)
        ):
            return list(other.base_values)
    return scheduler.base_values


def _unexplained(
    known: Sequence[Mapping[str, Any]],
    explained: Sequence[Mapping[str, Any]],
    names: Sequence[str],
) -> str:
    """What the schedulers of the checkpoint did not do to its values."""
    for index, (group, value) in enumerate(zip(known, explained, strict=True)):
        for name in names:
            if name in group and not isclose(
                group[name], value[name], rel_tol=1e-6, abs_tol=1e-15
            ):
                return (
                    f'{name} of parameter group {index} is {group[name]:g} in '
                    f'the checkpoint, where its schedulers lead to '
                    f'{value[name]:g}: something else has changed it, such as '
                    'a hook or ReduceOnPlateauLR'
                )
    return ''


def _keep_plateau(
    scheduler: ReduceOnPlateauParamScheduler,
    state: Mapping[str, Any],
    settings: Sequence[tuple[int, str, Any, Any]],
    index: int,
) -> dict[str, Any]:
    """Present settings, and what was measured so far."""
    result = without_functions(scheduler.__dict__)
    result.update({key: state[key] for key in _PLATEAU_PROGRESS})
    if any(
        number == index and name in _PLATEAU_MEASURE
        for number, name, *_ in settings
    ):
        result.update(best=scheduler.rule_worse, num_bad_epochs=0)
    del result['optimizer']
    return result
