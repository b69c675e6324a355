"""What differs between a checkpoint and the training that goes on from it.

Resuming mixes two sources: the states in the checkpoint and the present
config. Here is the table of where they may differ. What cannot change the
steps that follow, or is meant to, goes through, and the present config holds.
With anything else the training would be neither the old one nor a new one, so
it is refused before the first step, with the command that does what was meant.
"""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import HOOKS
from rich import box
from rich.table import Table

from ...checks.config import Steps, join_key, read_values
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
            # What states tell better, as others set it, too.
            r'optim_wrapper\.(.*\.)?optimizer\.lr',
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


# Comparing configs -----------------------------------------------------------


def config_differences(
    old: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[Difference]:
    """Differences of two configs that the states do not tell."""
    yield from _settings(old, now)
    yield from _hooks(old, now)


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


def _settings(before: Mapping, now: Mapping) -> Iterator[Difference]:
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
                    option=option_for(steps, old),
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


def option_for(steps: Steps, value: Any) -> str:
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
