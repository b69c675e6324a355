"""What differs between a checkpoint and the training that goes on from it.

Resuming mixes two sources: the states in the checkpoint and the present
config. :func:`compare` lists where they differ. What cannot change the steps
that follow, or is meant to, goes through, and the present config holds. With
anything else the training would be neither the old one nor a new one, so it is
refused before the first step, with the command that does what was meant.
"""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmengine.hooks import CheckpointHook, EarlyStoppingHook, EMAHook, Hook
from mmengine.optim import (
    ExponentialParamScheduler,
    MultiStepParamScheduler,
    OptimWrapper,
    ReduceOnPlateauParamScheduler,
    StepParamScheduler,
    _ParamScheduler,
)
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner
from rich import box
from rich.table import Table
from torch.utils.data import DataLoader

from ...checks.config import Steps, join_key, read_values
from ..accumulation import named_wrappers
from ..loops import batch_size_of, remaining_iterations
from ..optim import IMPLEMENTATIONS
from .load import table_text

# Keys of the config that say how the steps of a training are computed. All
# others are of the run, of validation and logging, or variables of the file.
_OF_THE_STEPS = (
    'custom_hooks',
    'data_preprocessor',
    'default_hooks',
    'freeze',
    'model',
    'optim_wrapper',
    'param_scheduler',
    'randomness',
    'sync_bn',
    'train_cfg',
    'train_dataloader',
)
# Of these, what may be another one all the same. Rows about states say more
# of the batch size, the length of the training and the learning rate.
_GOES_THROUGH = re.compile(
    '|'.join(
        (
            # How data are read, and where they lie.
            r'train_dataloader\.(num_workers|persistent_workers)',
            r'train_dataloader\.(pin_memory|prefetch_factor|timeout)',
            r'train_dataloader\..*\b(ann_file|backend_args|data_root)\b.*',
            r'train_dataloader\..*\b(data_prefix|file_client_args)\b.*',
            r'train_dataloader\.batch_size',
            r'train_cfg\.(max_epochs|max_iters)',
            # Validation.
            r'train_cfg\.(val_begin|val_interval|dynamic_intervals.*)',
            r'model\.(.*\.)?test_cfg\b.*',
            # Weights that those of the checkpoint replace.
            r'model\.(.*\.)?(init_cfg|pretrained)\b.*',
            # How a step is computed, and not what it does.
            rf'optim_wrapper\..*\b({"|".join(IMPLEMENTATIONS)})',
        )
    )
)
# Hooks that change the steps, though they keep nothing in checkpoints.
_HOOKS_OF_THE_STEPS = {
    'DistSamplerSeedHook',
    'MeanTeacherHook',
    'ParamSchedulerHook',
    'PipelineSwitchHook',
    'YOLOXModeSwitchHook',
}
# Settings of a schedule are in its states, except for these.
_NOT_IN_STATES = ('anneal_strategy', 'type')
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
# More differences below one key are shown as one.
_MAX_ROWS = 6


@dataclass(frozen=True)
class Difference:
    """One difference; None stands for what is not there.

    Args:
        key: Key of the config, or what it is about.
        before: In the checkpoint.
        now: In the present config, which holds unless this is refused.
        note: What follows from it.
        refused: Whether the training cannot go on with it.
        option: For ``--cfg-options``, what makes it as it was.
    """

    key: str
    before: Any
    now: Any
    note: str = ''
    refused: bool = False
    option: str = ''


# Telling ---------------------------------------------------------------------


def differences_table(differences: Sequence[Difference]) -> str:
    """The differences as a table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ('setting', 'checkpoint', 'config'):
        table.add_column(name, no_wrap=True)
    table.add_column('', overflow='fold', max_width=60)
    for item in differences:
        table.add_row(
            item.key,
            _short(item.before),
            _short(item.now),
            ': '.join(filter(None, ['REFUSED' * item.refused, item.note])),
        )
    return table_text(table)


def check_differences(
    differences: Sequence[Difference], filename: str
) -> None:
    """Raise ValueError if something is refused."""
    refused = [item for item in differences if item.refused]
    if not refused:
        return
    rows = '; '.join(
        f'{item.key}: {_short(item.before)} in the checkpoint, '
        f'{_short(item.now)} now' + (item.note and f' ({item.note})')
        for item in refused
    )
    # Other schedules may be due to the other length alone.
    is_longer = any(item.key.startswith('train_cfg.max_') for item in refused)
    options, added, others = [], [], []
    for item in refused:
        if item.option:
            options.append(item.option)
        elif not (is_longer and item.key.startswith('param_scheduler')):
            (added if item.before is None else others).append(item.key)
    restore = ' and '.join(
        f'{what} {mark.join(items)}'
        for what, items, mark in (
            ('give --cfg-options', options, ' '),
            ('leave out', added, ', '),
            ('restore its', others, ', '),
        )
        if items
    )
    anew = shlex.quote(f'load_from={filename}')
    raise ValueError(
        f'cannot resume from {filename!r}, as this is another training: '
        f'{rows}. To go on with the training of the checkpoint, {restore}. To '
        'begin a new training from its weights, leave --resume out and give '
        f'--cfg-options {anew} resume=False'
    )


def _short(value: Any) -> str:
    text = str(_summary(value))
    return text if len(text) <= 60 else f'{text[:57]}...'


def _summary(value: Any) -> Any:
    """A component by its type, a list by its entries."""
    if value is None:
        return 'not set'
    if isinstance(value, float):
        return f'{value:.6g}'
    if isinstance(value, Mapping):
        rest = ', '.join(
            f'{key}={_summary(item)}'
            for key, item in value.items()
            if key != 'type'
        )
        return f'{value.get("type", "dict")}({rest})'
    if isinstance(value, list | tuple):
        return '[' + ', '.join(str(_summary(item)) for item in value) + ']'
    return value


# Comparing -------------------------------------------------------------------


def compare(runner: Runner, checkpoint: Mapping[str, Any]) -> list[Difference]:
    """Compare a checkpoint with the runner that is to go on from it.

    Args:
        runner: Optimizer and schedulers are built, states not yet loaded.
        checkpoint: What was read; it is not changed.
    """
    meta = checkpoint['meta']
    before = read_config_text(meta.get('cfg'))
    rows = [
        *_optimizers(runner, checkpoint),
        *_schedules(runner, checkpoint),
        *_windows(runner, meta),
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
        for item in (*_config(before, now), *_hooks(before, now))
        if item.key not in known
    ]


def read_config_text(text: Any) -> dict[str, Any] | None:
    """Parse what ``Config.pretty_text`` has written; it is never run.

    An expression that is no plain value is its text. Returns None for what is
    no such text.

    Examples:
        >>> read_config_text("a = dict(b=[1, -2.5], c=print('hi'))")
        {'a': {'b': [1, -2.5], 'c': "print('hi')"}}
        >>> read_config_text('a = (')
    """
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        return read_values(text, ast.unparse)
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        return None


def _config(before: Mapping, now: Mapping) -> Iterator[Difference]:
    """Settings of the steps; many below one key are one difference."""
    sections: dict[str, list[Difference]] = {}
    for key in _OF_THE_STEPS:
        if key in ('custom_hooks', 'default_hooks'):
            continue
        for steps, old, new in _unequal(before.get(key), now.get(key), (key,)):
            if key == 'param_scheduler' and steps[-1] not in _NOT_IN_STATES:
                continue
            name = join_key(steps)
            goes_through = bool(_GOES_THROUGH.fullmatch(name))
            sections.setdefault(join_key(steps[:2]), []).append(
                Difference(
                    name,
                    old,
                    new,
                    refused=not goes_through,
                    option=_option(steps, old),
                )
            )
    for name, rows in sections.items():
        if len(rows) <= _MAX_ROWS:
            yield from rows
            continue
        yield from (row for row in rows if not row.refused)
        refused = [row.key for row in rows if row.refused]
        if refused:
            yield Difference(
                name,
                f'{len(refused)} settings',
                'others',
                ', '.join(refused[:_MAX_ROWS]),
                refused=True,
            )


def _unequal(
    one: Any, other: Any, steps: Steps
) -> Iterator[tuple[Steps, Any, Any]]:
    """Where two configs differ; a key that is None is as good as none."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            yield from _unequal(one.get(key), other.get(key), (*steps, key))
    elif (
        isinstance(one, list | tuple)
        and isinstance(other, list | tuple)
        and len(one) == len(other)
    ):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from _unequal(*pair, (*steps, index))
    elif one != other:
        yield steps, one, other


def _option(steps: Steps, value: Any) -> str:
    """``KEY=VALUE`` for ``--cfg-options``, empty if that cannot say it."""
    values = value if isinstance(value, list | tuple) else [value]
    if not values or not all(
        isinstance(item, bool | int | float)
        or (isinstance(item, str) and re.fullmatch(r'[\w./:-]+', item))
        for item in values
    ):
        return ''
    if values is value:
        value = '[' + ','.join(map(str, values)) + ']'
    return shlex.quote(f'{".".join(map(str, steps))}={value}')


def _hooks(before: Mapping, now: Mapping) -> Iterator[Difference]:
    """Hooks that only one of two configs has, in any order."""
    lists = []
    for cfg in (before, now):
        defaults = cfg.get('default_hooks') or {}
        custom = cfg.get('custom_hooks') or ()
        lists.append([*filter(None, defaults.values()), *custom])
    gone = [hook for hook in lists[0] if hook not in lists[1]]
    new = [hook for hook in lists[1] if hook not in lists[0]]
    kinds = dict.fromkeys(_hook_type(hook) for hook in (*gone, *new))
    for kind in kinds:
        pair = [
            [hook for hook in hooks if _hook_type(hook) == kind] or None
            for hooks in (gone, new)
        ]
        yield Difference(
            f'hook {kind}',
            *(
                hooks[0] if hooks and len(hooks) == 1 else hooks
                for hooks in pair
            ),
            refused=_is_of_the_steps(kind),
        )


def _hook_type(hook: Any) -> str:
    return str(hook.get('type') if isinstance(hook, Mapping) else hook)


def _is_of_the_steps(kind: str) -> bool:
    """Whether a hook has a state in checkpoints, or changes the steps."""
    if kind.rpartition('.')[2] in _HOOKS_OF_THE_STEPS:
        return True
    hook = HOOKS.get(kind)
    if hook is None:
        return True
    return not issubclass(hook, CheckpointHook) and any(
        getattr(hook, name, None) is not getattr(Hook, name)
        for name in ('before_save_checkpoint', 'after_load_checkpoint')
    )


# Comparing states ------------------------------------------------------------


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
        scaler = getattr(wrapper, 'loss_scaler', None)
        scaled = [
            'scaled' if is_scaled else 'not scaled'
            for is_scaled in (
                state.get('loss_scaler'),
                scaler is not None and scaler.is_enabled(),
            )
        ]
        if scaled[0] != scaled[1]:
            yield Difference(f'{prefix}: loss', *scaled, refused=True)


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
        refused = key != 'lr' or not _has_other_batches(runner, checkpoint)
        if not refused and _has_own_rates(runner, name):
            refused, note = True, 'the schedule has a rate of its own'
        yield Difference(
            join_key((*steps, key)),
            *differ[0],
            note if refused else 'as configured, for the other batch size',
            refused=refused,
            option=_option((*steps, key), differ[0][0]),
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


def _has_other_batches(runner: Runner, checkpoint: Mapping) -> bool:
    """Whether a step sees another number of samples, over all processes."""
    meta = checkpoint['meta']
    sizes = [
        (meta.get('batch_size'), meta.get('world_size')),
        (batch_size_of(runner.train_dataloader), runner.world_size),
    ]
    if any(None in pair for pair in sizes):
        return False
    return sizes[0][0] * sizes[0][1] != sizes[1][0] * sizes[1][1]


def _has_own_rates(runner: Runner, name: str) -> bool:
    """Whether a schedule goes to a rate that is no multiple of the first."""
    schedulers = by_wrapper(runner.param_schedulers, []).get(name, [])
    return any(
        getattr(scheduler, 'eta_min', None)
        or any(getattr(scheduler, 'min_values', ()))
        for scheduler in schedulers
        if scheduler.param_name == 'lr'
    )


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
        option=_option(('train_cfg', key), before),
    )


def _windows(runner: Runner, meta: Mapping[str, Any]) -> Iterator[Difference]:
    """Gradients that wait for the optimizer."""
    saved = meta.get('accumulation')
    position = meta['epoch'], meta['iter'], meta.get('batch_in_epoch', 0)
    remaining = remaining_iterations(runner.train_loop, *position)
    for wrapper in named_wrappers(runner.optim_wrapper).values():
        lost = meta['iter'] % wrapper._accumulative_counts
        if saved is None and lost and remaining > 0:
            yield Difference(
                'accumulated gradients',
                'not saved',
                f'of {lost} batches',
                'they are lost',
            )
    ranks = (saved or {}).get('gradients', [])
    if ranks and (len(ranks) != runner.world_size or None in ranks):
        yield Difference(
            'accumulated gradients',
            f'of {len(ranks) - ranks.count(None)} processes',
            f'{runner.world_size} processes',
            'each process begins with their mean',
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
    """Number of processes, batches and samples."""
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
            _option(size_key, meta.get('batch_size')),
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


def _list(items: set[str]) -> str:
    shown = ', '.join(sorted(items)[:4]) or 'none'
    return f'{shown}, ... ({len(items)})' if len(items) > 4 else shown


# Carrying over ---------------------------------------------------------------


def carry_over(
    runner: Runner, checkpoint: Mapping[str, Any]
) -> list[_ParamScheduler]:
    """Put what the config has of its own into states that are to be loaded.

    Args:
        runner: Optimizer and schedulers are built, states not yet loaded.
        checkpoint: One without differences that are refused; its states of
            optimizers and schedulers are changed in place.

    Returns:
        Schedulers that passed their former end and are to do one step for
        each entry, once their states are loaded.
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
