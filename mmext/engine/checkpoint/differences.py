"""What differs between a checkpoint and the training that goes on from it.

Resuming mixes two sources: the state in the checkpoint and the present
config. Here both are compared, and each difference is a :class:`Change` that
says which one holds. :func:`compare` changes nothing; what it found is printed
as a table, refused, or applied after MMEngine has loaded the states.
"""

from collections.abc import Mapping, Sequence
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
from mmengine.registry import PARAM_SCHEDULERS
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ..accumulation import named_wrappers, window_changes
from ..loops import batch_size_of, remaining_iterations
from ..optim import IMPLEMENTATIONS
from .config_changes import config_changes, read_config_text
from .groups import group_sizes, parameter_names
from .plan import (
    CHECKPOINT,
    CONFIG,
    REFUSED,
    Change,
    ResumePlan,
    by_wrapper,
)

_OTHERWISE = (
    'set load_from (and not resume) to begin a new training from its weights'
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


# What a checkpoint notes about its training -------------------------------


def _kind(value: Any) -> str:
    return f'{type(value).__module__}.{type(value).__qualname__}'


def describe_training(runner: Runner) -> dict[str, Any]:
    """What must be the same, or is to be named, when this is resumed.

    Plain values only, so that it is read without running code.
    """
    schedulers = by_wrapper(runner.param_schedulers, [])
    return {
        'by_epoch': isinstance(runner.train_loop, EpochBasedTrainLoop),
        'num_samples': num_samples(runner.train_dataloader),
        'optimizers': {
            name: {
                'type': _kind(wrapper.optimizer),
                'params': parameter_names(runner, wrapper),
            }
            for name, wrapper in named_wrappers(runner.optim_wrapper).items()
        },
        'frozen': _frozen(runner),
        'schedulers': {
            name: [
                {
                    'type': type(item).__name__,
                    'functions': {
                        key: value.__name__
                        for key, value in vars(item).items()
                        if callable(value) and key in _settings(vars(item))
                    },
                }
                for item in items
            ]
            for name, items in schedulers.items()
        },
    }


def without_functions(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a scheduler, to be read without running code."""
    return {key: value for key, value in state.items() if not callable(value)}


def _settings(state: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in the state of a scheduler; functions by their names."""
    return {
        key: value.__name__ if callable(value) else value
        for key, value in state.items()
        if key not in _PROGRESS
    }


def _changed_settings(
    scheduler: _ParamScheduler,
    state: Mapping[str, Any],
    kind: tuple[type | None, Mapping[str, str]],
) -> list[tuple[str, Any, Any]]:
    """``(setting, before, now)`` of a scheduler and its saved state."""
    old_type, functions = kind
    if old_type not in (None, type(scheduler)):
        return [('type', old_type.__name__, type(scheduler).__name__)]
    before, now = {**_settings(state), **functions}, _settings(vars(scheduler))
    return [
        (key, before[key], now[key])
        # Other releases of MMEngine know other settings.
        for key in sorted(before.keys() & now.keys())
        if before[key] != now[key]
    ]


def num_samples(dataloader: DataLoader) -> int | None:
    """Samples of a data set, None if it has no length."""
    dataset = dataloader.dataset
    return len(dataset) if hasattr(dataset, '__len__') else None


# Comparing ------------------------------------------------------------------


def compare(runner: Runner, checkpoint: Mapping[str, Any]) -> ResumePlan:
    """Compare a checkpoint with the runner that is to go on from it.

    Args:
        runner: Optimizer and schedulers are built, states not yet loaded.
        checkpoint: What was read; it is not changed.
    """
    comparison = _Comparison(runner, checkpoint)
    return comparison.run()


class _Comparison:
    """Collects the differences."""

    def __init__(self, runner: Runner, checkpoint: Mapping[str, Any]) -> None:
        self.runner = runner
        self.checkpoint = checkpoint
        self.meta = checkpoint['meta']
        self.training = self.meta.get('training') or {}
        self.changes: list[Change] = []
        # Name of the optimizer and index of the scheduler -> end.
        self.moved_ends: dict[tuple[str, int], int] = {}
        self.old_cfg = read_config_text(self.meta.get('cfg'))

    @property
    def is_end_of_epoch(self) -> bool:
        """Whether all batches of an epoch, and not yet its hooks, are done."""
        done = self.meta.get('batch_in_epoch', 0)
        return done > 0 and done == self.meta.get('batches_per_epoch')

    def add(
        self, key: str, before: Any, now: Any, holds: str, note: str = ''
    ) -> None:
        if before != now:
            self.changes.append(Change(key, before, now, holds, note))

    def run(self) -> ResumePlan:
        """All differences; those of states first."""
        self.loop()
        self.optimizers()
        if not any(item.holds == REFUSED for item in self.changes):
            self.schedule()
            self.windows()
        self.numbers()
        self.averages()
        self.data()
        self.rest_of_config()
        return ResumePlan(self.changes, self.moved_ends)

    # Position

    def loop(self) -> None:
        """By epochs or by iterations, and how far."""
        loop = self.runner.train_loop
        before = self.training.get('by_epoch')
        if before is None and self.old_cfg:
            before = _goes_by_epoch(self.old_cfg.get('train_cfg'))
        now = isinstance(loop, EpochBasedTrainLoop)
        names = {True: 'by epochs', False: 'by iterations'}
        if before is not None:
            self.add(
                'train_cfg.by_epoch',
                names[before],
                names[now],
                REFUSED,
                f'a position counts in one of them; {_OTHERWISE}',
            )
        hub = self.checkpoint['message_hub'].get('runtime_info', {})
        unit, done = ('epochs', 'epoch') if now else ('iters', 'iter')
        end = getattr(loop, f'max_{unit}')
        note = ''
        if end <= self.meta[done]:
            note = f'nothing is left to train: {self.meta[done]} are done'
        if hub.get(f'max_{unit}') is not None and before in (None, now):
            self.add(
                f'train_cfg.max_{unit}',
                hub[f'max_{unit}'],
                end,
                CONFIG,
                note,
            )

    # Optimizer

    def optimizers(self) -> None:
        """Kind, parameters and settings of each optimizer."""
        wrappers = named_wrappers(self.runner.optim_wrapper)
        states = self.checkpoint['optimizer']
        if 'param_groups' in states:
            states = {'': states}
        if set(states) != set(wrappers):
            self.add(
                'optim_wrapper',
                _names(states),
                _names(wrappers),
                REFUSED,
                f'other optimizers; {_OTHERWISE}',
            )
            return
        for name, wrapper in wrappers.items():
            prefix = f'optim_wrapper.{name}' if name else 'optim_wrapper'
            if self.same_parameters(prefix, name, wrapper, states[name]):
                self.settings(prefix, wrapper, states[name])
            # That of bfloat16 does nothing, and has an empty state.
            if not states[name].get('loss_scaler', True):
                del states[name]['loss_scaler']
            scaler = getattr(wrapper, 'loss_scaler', None)
            scaled = scaler is not None and scaler.is_enabled()
            self.add(
                f'{prefix}.loss_scale',
                'yes' if 'loss_scaler' in states[name] else 'no',
                'yes' if scaled else 'no',
                CONFIG,
                'begins as configured' if scaled else 'the loss is not scaled',
            )

    def same_parameters(
        self, prefix: str, name: str, wrapper: OptimWrapper, state: Mapping
    ) -> bool:
        """Whether the state of an optimizer is one of these parameters."""
        known = self.training.get('optimizers', {}).get(name, {})
        before = known.get('type') or self.old_optimizer(name)
        now = _kind(wrapper.optimizer)
        remedy = f'its state means nothing to another; {_OTHERWISE}'
        if before is None:
            # The class is not noted; its options give it away.
            keys = {'alpha', 'betas', 'dampening', 'lambd', 'rho', 'max_iter'}
            before = _names(keys & set(state['param_groups'][0]))
            now = _names(keys & set(wrapper.optimizer.param_groups[0]))
        if before.split('.')[-1] != now.split('.')[-1]:
            self.add(
                f'{prefix}.optimizer.type',
                before.split('.')[-1],
                now.split('.')[-1],
                REFUSED,
                remedy,
            )
            return False
        names = parameter_names(self.runner, wrapper)
        sizes = [len(group['params']) for group in state['param_groups']]
        saved = known.get('params')
        if saved == names or (
            saved is None and sizes == [len(group) for group in names]
        ):
            return True
        old = {item for group in saved or () for item in group}
        new = {item for group in names for item in group}
        gone, added = sorted(old - new), sorted(new - old)
        text = 'they are in another order or in other groups'
        if saved and (gone or added):
            text = f'gone: {_list(gone)}; new: {_list(added)}'
        self.changes.append(
            Change(
                f'{prefix}: parameters per group',
                group_sizes(sizes),
                group_sizes([len(group) for group in names]),
                REFUSED,
                f'{text}. Use the model, paramwise_cfg and frozen layers of '
                f'the checkpoint, or {_OTHERWISE}',
            )
        )
        return False

    def old_optimizer(self, name: str) -> str | None:
        """Name of the optimizer in the config of the checkpoint."""
        cfg = (self.old_cfg or {}).get('optim_wrapper')
        for key in (
            (name, 'optimizer', 'type')
            if name
            else (
                'optimizer',
                'type',
            )
        ):
            cfg = cfg.get(key) if isinstance(cfg, Mapping) else None
        return cfg if isinstance(cfg, str) else None

    def settings(
        self, prefix: str, wrapper: OptimWrapper, state: Mapping
    ) -> None:
        """Settings of the parameter groups: those of the checkpoint stay."""
        pairs = list(
            zip(
                state['param_groups'],
                wrapper.optimizer.param_groups,
                strict=True,
            )
        )
        for key in sorted({key for group in pairs[0] for key in group}):
            differ = [
                (index, *values)
                for index, pair in enumerate(pairs)
                for values in [[_unscheduled(group, key) for group in pair]]
                if None not in values and values[0] != values[1]
            ]
            if not differ:
                continue
            _, before, now = differ[0]
            where = ''
            if len(pairs) > 1:
                where = f'{len(differ)} of {len(pairs)} groups; '
            self.add(
                f'{prefix}.optimizer.{key}',
                before,
                now,
                CHECKPOINT,
                f'{where}it is part of the state of the optimizer',
            )

    # Schedule

    def schedule(self) -> None:
        """The schedulers of each optimizer."""
        saved = by_wrapper(self.checkpoint.get('param_schedulers'), [])
        present = by_wrapper(self.runner.param_schedulers, [])
        present = {
            name: present.get(name, [])
            for name in named_wrappers(self.runner.optim_wrapper)
        }
        for name in named_wrappers(self.runner.optim_wrapper):
            states, schedulers = saved.get(name, []), present[name]
            prefix = f'param_scheduler{name and "." + name}'
            if len(states) != len(schedulers):
                self.changes.append(
                    Change(
                        prefix,
                        f'{len(states)} schedulers',
                        f'{len(schedulers)} schedulers',
                        REFUSED,
                        'param_scheduler must have as many entries as in the '
                        f'training that is resumed, got {len(schedulers)}, '
                        f'and {len(states)} in the checkpoint; resume with '
                        'the param_scheduler it was trained with'
                        if 'param_schedulers' in self.checkpoint
                        else 'it was saved with save_param_scheduler=False, '
                        f'so that no schedule can go on; {_OTHERWISE}',
                    )
                )
            elif schedulers:
                self.one_schedule(prefix, name, schedulers, states)

    def one_schedule(
        self,
        prefix: str,
        name: str,
        schedulers: Sequence[Any],
        states: Sequence[Mapping[str, Any]],
    ) -> None:
        """The schedulers of one optimizer: only their ends may move."""
        ends = []
        for index, (scheduler, state, kind) in enumerate(
            zip(schedulers, states, self.kinds(name, len(states)), strict=True)
        ):
            changed = _changed_settings(scheduler, state, kind)
            if isinstance(scheduler, _FREE_OF_END) and [
                key for key, *_ in changed
            ] == ['end']:
                self.moved_ends[name, index] = scheduler.end
                self.add(f'{prefix}[{index}].end', *changed[0][1:], CONFIG)
                changed = []
            for key, before, now in changed:
                self.add(
                    f'{prefix}[{index}].{key}',
                    before,
                    now,
                    REFUSED,
                    'the schedule goes on as it began: resume with the '
                    'param_scheduler and train_cfg of the checkpoint, or '
                    f'{_OTHERWISE}',
                )
            ends.append((scheduler.end, scheduler.by_epoch))
        self.end_of_schedule(prefix, ends)

    def end_of_schedule(
        self, prefix: str, ends: Sequence[tuple[int, bool]]
    ) -> None:
        """A longer training needs a schedule that covers it."""
        loop = self.runner.train_loop
        goes_by_epoch = isinstance(loop, EpochBasedTrainLoop)
        unit = 'max_epochs' if goes_by_epoch else 'max_iters'
        hub = self.checkpoint['message_hub'].get('runtime_info', {})
        total = getattr(loop, unit)
        length = len(self.runner.train_dataloader) if goes_by_epoch else 1
        last = max(
            (
                end if by_epoch else end / length
                for end, by_epoch in ends
                if goes_by_epoch or not by_epoch
            ),
            default=total,
        )
        # Not one that was over before the training, such as a warm-up alone.
        if hub.get(unit, total) <= last < total:
            self.add(
                f'train_cfg.{unit}',
                hub[unit],
                total,
                REFUSED,
                f'the schedule ends at {last:g}, and the training would go '
                f'on with its last values: {_OTHERWISE}',
            )

    def kinds(
        self, name: str, num: int
    ) -> list[tuple[type | None, Mapping[str, str]]]:
        """Classes and functions of the schedulers of the checkpoint."""
        known = self.training.get('schedulers', {}).get(name)
        if known is None:
            cfg = (self.old_cfg or {}).get('param_scheduler')
            if isinstance(cfg, Mapping):
                cfg = [cfg] if 'type' in cfg else cfg.get(name)
            known = cfg if isinstance(cfg, list) else []
        known = [item for item in known if isinstance(item, Mapping)]
        if len(known) != num:
            return [(None, {})] * num
        return [
            (
                PARAM_SCHEDULERS.get(str(item.get('type'))),
                dict(item.get('functions') or {}),
            )
            for item in known
        ]

    # Everything else that is a state

    def windows(self) -> None:
        """Accumulation of gradients."""
        for item in window_changes(
            self.runner.optim_wrapper,
            self.meta.get('accumulation'),
            self.meta['iter'],
            remaining_iterations(
                self.runner.train_loop,
                self.meta['epoch'],
                self.meta['iter'],
                self.meta.get('batch_in_epoch', 0),
            ),
            self.runner.world_size,
        ):
            self.changes.append(Change(*item))

    def numbers(self) -> None:
        """Seed and random numbers."""
        seed = self.runner._randomness_cfg.get('seed')
        if seed is not None and self.meta.get('seed') is not None:
            self.add(
                'randomness.seed',
                self.meta['seed'],
                seed,
                CHECKPOINT,
                'order of the data and random numbers go on',
            )
        states = self.meta.get('rng_states') or []
        world_size = self.runner.world_size
        if len(states) != world_size or None in states:
            missing = [str(n) for n, item in enumerate(states) if item is None]
            self.changes.append(
                Change(
                    'random numbers',
                    f'of {len(states)} processes'
                    + (f', not {", ".join(missing)}' if missing else '')
                    if states
                    else 'not saved',
                    f'{world_size} processes',
                    CONFIG,
                    'not restored in all processes: noise and augmentation '
                    'are others than without interruption',
                )
            )

    def averages(self) -> None:
        """EMA, and hooks that forget."""
        hooks = self.runner.hooks
        had = 'ema_state_dict' in self.checkpoint
        has = any(isinstance(hook, EMAHook) for hook in hooks)
        self.add(
            'EMAHook',
            'yes' if had else 'no',
            'yes' if has else 'no',
            CONFIG,
            'averages begin with the weights of the checkpoint'
            if has
            else 'averages are dropped; the weights that were trained go on',
        )
        if any(isinstance(hook, EarlyStoppingHook) for hook in hooks):
            self.changes.append(
                Change(
                    'EarlyStoppingHook',
                    'not saved',
                    'yes',
                    CONFIG,
                    'counts anew from here',
                )
            )
        frozen = self.training.get('frozen')
        if frozen is not None:
            old, new = set(frozen), set(_frozen(self.runner))
            if old != new:
                self.changes.append(
                    Change(
                        'frozen parameters',
                        f'{len(old)}',
                        f'{len(new)}',
                        CONFIG,
                        f'frozen now: {_list(sorted(new - old))}; trained '
                        f'now: {_list(sorted(old - new))}',
                    )
                )

    def data(self) -> None:
        """Number of processes, batches and samples."""
        runner, meta = self.runner, self.meta
        loader = runner.train_dataloader
        note = {
            True: 'from this epoch on',
            False: 'in this pass, samples may come twice or not at all',
        }[isinstance(runner.train_loop, EpochBasedTrainLoop)]
        for key, before, now in (
            ('number of processes', meta.get('world_size'), runner.world_size),
            (
                'train_dataloader.batch_size',
                meta.get('batch_size'),
                batch_size_of(loader),
            ),
            (
                'training samples',
                self.training.get('num_samples'),
                num_samples(loader),
            ),
            (
                'iterations per epoch',
                meta.get('batches_per_epoch'),
                len(loader),
            ),
        ):
            if before is not None:
                self.add(key, before, now, CONFIG, note)

    def rest_of_config(self) -> None:
        """Settings that no state has to do with."""
        if self.old_cfg is None:
            self.changes.append(
                Change(
                    'config',
                    'not in the checkpoint, or not readable',
                    '',
                    CONFIG,
                    'only states are compared',
                )
            )
            return
        known = {item.key for item in self.changes}
        now = read_config_text(self.runner.cfg.pretty_text) or {}
        in_epoch = (
            isinstance(self.runner.train_loop, EpochBasedTrainLoop)
            and self.meta.get('batch_in_epoch', 0) > 0
            and not self.is_end_of_epoch
        )
        for change in config_changes(self.old_cfg, now):
            if change.key in known or _is_known(change.key, known):
                continue
            holds, note = CONFIG, ''
            is_how = change.key.rpartition('.')[2] in IMPLEMENTATIONS
            if change.key.startswith(_STATES) and not is_how:
                holds, note = CHECKPOINT, 'part of the states'
            elif in_epoch and change.key.startswith(_ORDER):
                holds = REFUSED
                note = (
                    'the checkpoint is from within an epoch, whose order of '
                    'data would change; use one from the end of an epoch'
                )
            self.add(change.key, change.before, change.now, holds, note)


# Sections of which a row of their states says what holds.
_STATES = (
    'optim_wrapper.optimizer',
    'optim_wrapper.paramwise_cfg',
    'train_dataloader.sampler.seed',
)
_ORDER = ('train_dataloader.sampler', 'train_dataloader.batch_sampler')


def _is_known(key: str, known: set[str]) -> bool:
    """Whether a row about states says it already."""
    if key.startswith('param_scheduler'):
        return any(item.startswith('param_scheduler') for item in known)
    if key.startswith(('optim_wrapper.optimizer', 'optim_wrapper.paramwise')):
        return any('.optimizer.' in item or ':' in item for item in known)
    return False


def _goes_by_epoch(train_cfg: Any) -> bool | None:
    """Kind of the loop in the config of a checkpoint."""
    if not isinstance(train_cfg, Mapping):
        return None
    if 'type' not in train_cfg:
        return bool(train_cfg.get('by_epoch', False))
    name = str(train_cfg['type'])
    if 'Epoch' in name:
        return True
    return False if 'Iter' in name else None


def _frozen(runner: Runner) -> list[str]:
    """Names of the parameters that are not trained."""
    return [
        name.removeprefix('module.')
        for name, parameter in runner.model.named_parameters()
        if not parameter.requires_grad
    ]


def _unscheduled(group: Mapping[str, Any], key: str) -> Any:
    """Value of a setting before any schedule, None where one sets it."""
    if key == 'params' or key.startswith(('initial_', 'max_', 'min_')):
        return None
    if f'max_{key}' in group:
        return None
    if key == 'betas' and 'initial_momentum' in group:
        return (group['initial_momentum'], group['betas'][1])
    if key == 'momentum' and 'betas' in group:
        return None
    return group.get(f'initial_{key}', group.get(key))


def _names(items: Any) -> str:
    return ', '.join(sorted(item or 'one optimizer' for item in items))


def _list(items: Sequence[str]) -> str:
    shown = ', '.join(items[:4]) or 'none'
    return f'{shown}, ... ({len(items)})' if len(items) > 4 else shown
