"""Take the loading of weights out of a model, before and after it is built."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config
from torch import nn

from .batches.pipelines import step_name

__all__ = ['drop_init_weights', 'drop_weights']

# Keys whose value is where weights are, and what takes its place.
_PLACES = ('pretrained', 'teacher_ckpt', 'checkpoint_file')


def drop_weights(
    value: Any, *, config_roots: tuple[Path, ...] = (), place: str = 'model'
) -> list[str]:
    """Let a config of a model load no weights.

    Args:
        value: The config. Edited.
        config_roots: Folders that paths of configs of teachers may start
            at, besides the current one.
        place: Dotted key of it.

    Returns:
        What was changed, each in words.
    """
    notes: list[str] = []
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            notes += drop_weights(
                item, config_roots=config_roots, place=f'{place}.{index}'
            )
        return notes
    if not isinstance(value, Mapping):
        return notes
    for key in list(value):
        inner = f'{place}.{key}'
        item = value[key]
        if key in _PLACES and isinstance(item, (str, bool)) and item:
            value[key] = None if isinstance(item, str) else False
            notes.append(f'{inner}: weights {item!r} are not loaded')
        elif key == 'init_cfg':
            value[key], dropped = _without_pretrained(item)
            notes += [
                f'{inner}: weights {name!r} are not loaded' for name in dropped
            ]
            if not value[key]:
                del value[key]
        elif key == 'teacher_config' and isinstance(item, (str, Path)):
            value[key] = _read_teacher(item, config_roots, inner)
            notes.append(f'{inner}: read from {item}')
            notes += drop_weights(
                value[key]['model'],
                config_roots=config_roots,
                place=f'{inner}.model',
            )
        else:
            notes += drop_weights(item, config_roots=config_roots, place=inner)
    return notes


def _without_pretrained(init: Any) -> tuple[Any, list[str]]:
    """What is left of ``init_cfg``, and the weights it named."""
    if isinstance(init, Mapping):
        # Some backbones name weights without a type.
        if step_name(init) in ('Pretrained', 'PretrainedInit') or (
            'type' not in init and init.get('checkpoint')
        ):
            return None, [str(init.get('checkpoint'))]
        return init, []
    if isinstance(init, (list, tuple)):
        kept, dropped = [], []
        for item in init:
            left, names = _without_pretrained(item)
            dropped += names
            if left is not None:
                kept.append(left)
        return kept or None, dropped
    return init, []


def _read_teacher(
    path: str | Path, roots: tuple[Path, ...], place: str
) -> Config:
    """Config of a teacher, whose path starts where its host is."""
    short = Path(*Path(path).parts[1:])
    tried = [Path(path)]
    tried += [root / name for root in roots for name in (path, short)]
    for each in tried:
        if each.is_file():
            return Config.fromfile(each)
    raise FileNotFoundError(
        f'{place} must be an existing config, got {path}; looked for '
        f'{[str(each) for each in tried]}'
    )


def drop_init_weights(model: nn.Module) -> list[str]:
    """Let the modules of a built model load no weights.

    Some are given by default arguments, which no config shows.

    Args:
        model: Edited.

    Returns:
        What was changed, each in words.
    """
    notes = []
    for name, module in model.named_modules():
        init = getattr(module, 'init_cfg', None)
        left, dropped = _without_pretrained(init)
        if dropped:
            module.init_cfg = left
            notes += [
                f'{name}: weights {each!r} are not loaded' for each in dropped
            ]
        if isinstance(getattr(module, 'pretrained', None), str):
            notes.append(
                f'{name}: weights {module.pretrained!r} are not loaded'
            )
            module.pretrained = None
    return notes
