"""Compare the states of a checkpoint with the training that takes them over.

:func:`compare` lists the differences from what the present config has built,
and those of the configs themselves; :func:`carry_over` puts those that go
through into the states.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmengine.hooks import EarlyStoppingHook, EMAHook
from mmengine.optim import (
    ExponentialParamScheduler,
    MultiStepParamScheduler,
    OptimWrapper,
    ReduceOnPlateauParamScheduler,
    StepParamScheduler,
    _ParamScheduler,
)
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ...checks.config import join_key
from ..accumulation import named_wrappers
from ..loops import batch_size_of
from ..optim import IMPLEMENTATIONS
from .differences import (
    Difference,
    config_differences,
    option_for,
    read_config_text,
)

# Attributes of a scheduler that are no settings, or follow from others.
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
    'total_iters',
    'use_betas',
    'verbose',
}
# Their values before the end do not follow from it.
_FREE_OF_END = (
    ExponentialParamScheduler,
    MultiStepParamScheduler,
    ReduceOnPlateauParamScheduler,
    StepParamScheduler,
)


def compare(runner: Runner, checkpoint: Mapping[str, Any]) -> list[Difference]:
    """Compare a checkpoint with the runner that is to go on from it.

    Its optimizer and schedulers are built, states not yet loaded.
    """
    meta = checkpoint['meta']
    before = read_config_text(meta.get('cfg'))
    rows = [
        *_optimizers(runner, checkpoint),
        *_schedules(runner, checkpoint),
        *_averages(runner, checkpoint),
        *_data(runner, meta),
    ]
    if before is None:
        note = 'not in the checkpoint, or not readable: states are compared'
        return [*rows, Difference('config', None, None, note)]
    now = read_config_text(runner.cfg.pretty_text) or {}
    known = {item.key for item in rows}
    return rows + [
        item
        for item in config_differences(before, now)
        if item.key not in known
    ]


def describe_training(runner: Runner) -> dict[str, Any]:
    """What the states of a checkpoint are of, as plain values."""
    return {
        'num_samples': num_samples(runner.train_dataloader),
        'optimizers': {
            name: {'params': _parameter_names(runner, wrapper)}
            for name, wrapper in named_wrappers(runner.optim_wrapper).items()
        },
    }


def num_samples(dataloader: DataLoader) -> int | None:
    """Samples of a data set, None if it has no length."""
    dataset = dataloader.dataset
    return len(dataset) if hasattr(dataset, '__len__') else None


def by_wrapper(value: Any, missing: Any) -> dict[str, Any]:
    """Schedulers or states, by name of the optimizer; one has no name."""
    if isinstance(value, Mapping) and 'param_groups' not in value:
        return dict(value)
    return {'': missing if value is None else value}


def _parameter_names(runner: Runner, wrapper: OptimWrapper) -> list[list[str]]:
    """Names of the parameters in each group of an optimizer."""
    names = {
        id(parameter): name.removeprefix('module.')
        for name, parameter in runner.model.named_parameters()
    }
    return [
        [names.get(id(item), '?') for item in group['params']]
        for group in wrapper.optimizer.param_groups
    ]


def _optimizers(runner: Runner, checkpoint: Mapping) -> Iterator[Difference]:
    """Kind, parameters and settings of each optimizer."""
    wrappers = named_wrappers(runner.optim_wrapper)
    states = by_wrapper(checkpoint['optimizer'], {})
    if set(states) != set(wrappers):
        names = [
            [name or 'one optimizer' for name in sorted(items)]
            for items in (states, wrappers)
        ]
        yield Difference('optim_wrapper', *names, refused=True)
        return
    noted = (checkpoint['meta'].get('training') or {}).get('optimizers', {})
    for name, wrapper in wrappers.items():
        prefix, state = f'optim_wrapper{name and "." + name}', states[name]
        saved = noted.get(name, {}).get('params')
        groups = _parameter_names(runner, wrapper)
        sizes = [len(group['params']) for group in state['param_groups']]
        if sizes != [len(group) for group in groups] or (
            saved not in (None, groups)
        ):
            old = {item for group in saved or () for item in group}
            new = {item for group in groups for item in group}
            note = 'in another order or in other groups'
            if saved and old != new:
                note = f'gone: {_list(old - new)}; new: {_list(new - old)}'
            yield Difference(
                f'{prefix}: parameters per group',
                sizes,
                [len(group) for group in groups],
                note,
                refused=True,
            )
            continue
        yield from _settings_of_groups(runner, checkpoint, name)
        # That of bfloat16 does nothing, and has an empty state.
        was_scaled = bool(state.get('loss_scaler'))
        scaler = getattr(wrapper, 'loss_scaler', None)
        is_scaled = scaler is not None and scaler.is_enabled()
        if was_scaled != is_scaled:
            key = f'{prefix}: scaled loss'
            yield Difference(key, was_scaled, is_scaled, refused=True)


def _settings_of_groups(
    runner: Runner, checkpoint: Mapping, name: str
) -> Iterator[Difference]:
    """Learning rate, weight decay and so on, group by group."""
    wrapper = named_wrappers(runner.optim_wrapper)[name]
    state = by_wrapper(checkpoint['optimizer'], {})[name]
    pairs = list(
        zip(state['param_groups'], wrapper.optimizer.param_groups, strict=True)
    )
    steps = ('optim_wrapper', *filter(None, [name]), 'optimizer')
    # A step may see another number of samples, over all processes.
    batches = [checkpoint['meta'].get(k) for k in ('batch_size', 'world_size')]
    own = [batch_size_of(runner.train_dataloader), runner.world_size]
    has_others = None not in batches + own and (
        math.prod(batches) != math.prod(own)
    )
    # A schedule may go to a rate that is no multiple of the first.
    has_own_rates = any(
        getattr(scheduler, 'eta_min', None)
        or any(getattr(scheduler, 'min_values', ()))
        for scheduler in by_wrapper(runner.param_schedulers, []).get(name, [])
        if scheduler.param_name == 'lr'
    )
    for key in sorted({key for group in pairs[0] for key in group}):
        differ = [
            values
            for pair in pairs
            for values in [[_unscheduled(group, key) for group in pair]]
            if None not in values and values[0] != values[1]
        ]
        if not differ:
            continue
        note = ''
        if len(pairs) > 1:
            note = f'{len(differ)} of {len(pairs)} groups'
        refused = key != 'lr' or not has_others
        # No factor leads from the old rates to the new ones.
        if not refused and (
            has_own_rates or not all(old for old, _ in differ)
        ):
            refused, note = True, 'the schedule has a rate of its own'
        yield Difference(
            join_key((*steps, key)),
            *differ[0],
            note if refused else 'as configured, for the other batch size',
            refused=refused,
            option=option_for((*steps, key), differ[0][0]),
        )


def _unscheduled(group: Mapping[str, Any], key: str) -> Any:
    """Value of a setting before any schedule, None where one sets it."""
    if key in ('params', *IMPLEMENTATIONS) or key.startswith(
        ('initial_', 'max_', 'min_')
    ):
        return None
    if f'max_{key}' in group:
        return None
    if key == 'betas' and 'initial_momentum' in group:
        return (group['initial_momentum'], group['betas'][1])
    if key == 'momentum' and 'betas' in group:
        return None
    return group.get(f'initial_{key}', group.get(key))


def _schedules(runner: Runner, checkpoint: Mapping) -> Iterator[Difference]:
    """The schedule of each optimizer, and the length of the training."""
    saved = by_wrapper(checkpoint.get('param_schedulers'), [])
    present = by_wrapper(runner.param_schedulers, [])
    rows, ends = [], []
    for name in named_wrappers(runner.optim_wrapper):
        states, schedulers = saved.get(name, []), present.get(name, [])
        prefix = f'param_scheduler{name and "." + name}'
        if len(states) != len(schedulers):
            note = ''
            if 'param_schedulers' not in checkpoint:
                note = 'it was saved with save_param_scheduler=False'
            counts = [
                f'{len(items)} schedulers' for items in (states, schedulers)
            ]
            rows.append(Difference(prefix, *counts, note, refused=True))
            continue
        for index, (scheduler, state) in enumerate(
            zip(schedulers, states, strict=True)
        ):
            ends.append((scheduler.end, scheduler.by_epoch))
            before, now = _settings(state), _settings(vars(scheduler))
            changed = [
                # Other releases of MMEngine know other settings.
                key
                for key in sorted(before.keys() & now.keys())
                if before[key] != now[key]
            ]
            # Moved by another length of the training, or by hand.
            is_end = isinstance(scheduler, _FREE_OF_END) and changed == ['end']
            rows += [
                Difference(
                    f'{prefix}[{index}].{key}',
                    before[key],
                    now[key],
                    '' if is_end else 'a schedule goes on as it began',
                    refused=not is_end,
                )
                for key in changed
            ]
    yield from _length(
        runner, checkpoint, ends, any(row.refused for row in rows)
    )
    yield from rows


def _settings(state: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in the state of a scheduler."""
    return {
        key: value
        for key, value in state.items()
        if key not in _PROGRESS and not callable(value)
    }


def _length(
    runner: Runner,
    checkpoint: Mapping,
    ends: Sequence[tuple[int, bool]],
    is_refused: bool,
) -> Iterator[Difference]:
    """A longer training needs a schedule that covers it."""
    loop, meta = runner.train_loop, checkpoint['meta']
    goes_by_epoch = isinstance(loop, EpochBasedTrainLoop)
    unit, done = ('epochs', 'epoch') if goes_by_epoch else ('iters', 'iter')
    key = f'max_{unit}'
    hub = checkpoint['message_hub'].get('runtime_info', {})
    total = getattr(loop, key)
    before = hub.get(key, total)
    if before == total:
        return
    length = len(runner.train_dataloader) if goes_by_epoch else 1
    last = max(
        (
            end if by_epoch else end / length
            for end, by_epoch in ends
            if goes_by_epoch or not by_epoch
        ),
        default=total,
    )
    note = ''
    if total <= meta[done]:
        note = f'nothing is left to train: {meta[done]} are done'
    # Not one that was over before the training, such as a warm-up alone.
    outlives = before <= last < total
    if outlives:
        note = f'the schedule ends at {last:g}'
    yield Difference(
        f'train_cfg.{key}',
        before,
        total,
        note,
        refused=outlives or is_refused,
        option=option_for(('train_cfg', key), before),
    )


def _averages(runner: Runner, checkpoint: Mapping) -> Iterator[Difference]:
    """Averages of weights, and a hook that forgets."""
    had = 'ema_state_dict' in checkpoint
    has = any(isinstance(hook, EMAHook) for hook in runner.hooks)
    if had != has:
        words = {True: 'averages of weights', False: None}
        key = 'hook EMAHook'
        yield Difference(key, words[had], words[has], refused=True)
    if any(isinstance(hook, EarlyStoppingHook) for hook in runner.hooks):
        note = 'not saved: counts anew from here'
        yield Difference('EarlyStoppingHook', None, 'counts', note)


def _data(runner: Runner, meta: Mapping[str, Any]) -> Iterator[Difference]:
    """Number of processes, batches and samples; states of each process."""
    loader = runner.train_dataloader
    by_epoch = isinstance(runner.train_loop, EpochBasedTrainLoop)
    done = meta.get('batch_in_epoch', 0)
    in_epoch = by_epoch and 0 < done < meta.get('batches_per_epoch', 0)
    note = 'in this pass, samples may come twice or not at all'
    if by_epoch:
        note = 'from this epoch on'
    if in_epoch:
        note = (
            'it was saved within an epoch, of which batches must be divided '
            'as before; at the end of an epoch this may differ'
        )
    size_key = ('train_dataloader', 'batch_size')
    for key, before, now, option in (
        ('number of processes', meta.get('world_size'), runner.world_size, ''),
        (
            join_key(size_key),
            meta.get('batch_size'),
            batch_size_of(loader),
            option_for(size_key, meta.get('batch_size')),
        ),
    ):
        if before not in (None, now):
            yield Difference(key, before, now, note, in_epoch, option)
    samples = (meta.get('training') or {}).get('num_samples')
    if samples not in (None, num_samples(loader)):
        yield Difference(
            'training samples', samples, num_samples(loader), refused=True
        )
    states = meta.get('rng_states') or []
    if len(states) != runner.world_size or None in states:
        missing = [str(n) for n, item in enumerate(states) if item is None]
        without = f', not {", ".join(missing)}' if missing else ''
        yield Difference(
            'random numbers',
            f'of {len(states)} processes{without}' if states else 'not saved',
            f'{runner.world_size} processes',
            'not restored in all processes: noise and augmentation are '
            'others than without interruption',
        )
    ranks = (meta.get('accumulation') or {}).get('gradients', [])
    if ranks and (len(ranks) != runner.world_size or None in ranks):
        yield Difference(
            'accumulated gradients',
            f'of {len(ranks) - ranks.count(None)} processes',
            f'{runner.world_size} processes',
            'each process begins with their mean',
        )


def _list(items: set[str]) -> str:
    shown = ', '.join(sorted(items)[:4]) or 'none'
    return f'{shown}, ... ({len(items)})' if len(items) > 4 else shown


# Carrying over ---------------------------------------------------------------


def carry_over(
    runner: Runner, checkpoint: Mapping[str, Any]
) -> list[_ParamScheduler]:
    """Put what the config has of its own into states that are to be loaded.

    They are changed in place. Returns schedulers that passed their former end
    and are to do one step for each entry, once their states are loaded.
    """
    late = []
    present = by_wrapper(runner.param_schedulers, [])
    saved = by_wrapper(checkpoint.get('param_schedulers'), [])
    for name, wrapper in named_wrappers(runner.optim_wrapper).items():
        state = by_wrapper(checkpoint['optimizer'], {})[name]
        if not state.get('loss_scaler', True):
            del state['loss_scaler']
        groups = [*state['param_groups'], state.get('base_param_settings')]
        own = [*wrapper.optimizer.param_groups, wrapper.base_param_settings]
        pairs = [pair for pair in zip(groups, own, strict=True) if all(pair)]
        for group, given in pairs:
            for key in IMPLEMENTATIONS:
                if key in given:
                    group[key] = given[key]
        schedulers = present.get(name, [])
        states = saved.get(name, [])
        _carry_rates(pairs, states)
        for scheduler, entry in zip(schedulers, states, strict=True):
            # From its end on a scheduler counts, and does nothing else.
            idle = max(0, entry['_global_step'] - entry['end'] + 1)
            if entry['end'] == scheduler.end:
                continue
            entry['end'] = scheduler.end
            if not isinstance(scheduler, ReduceOnPlateauParamScheduler):
                entry['_global_step'] -= idle
                late += [scheduler] * idle
    return late


def _carry_rates(
    pairs: Sequence[tuple[dict, Mapping]], schedulers: Sequence[dict]
) -> None:
    """Multiply learning rates, and what follows from them."""
    rates = [[_unscheduled(group, 'lr') for group in pair] for pair in pairs]
    factors = [
        1.0 if None in pair or pair[0] == pair[1] else pair[1] / pair[0]
        for pair in rates
    ]
    if set(factors) == {1.0}:
        return
    for (group, _), factor in zip(pairs, factors, strict=True):
        for key in {'lr', 'initial_lr'} & group.keys():
            group[key] *= factor
    for state in schedulers:
        if state['param_name'] == 'lr':
            for key in ('_last_value', 'base_values'):
                state[key] = [
                    value * factor
                    for value, factor in zip(state[key], factors, strict=True)
                ]
