"""Files of the public CO-DETR projects, converted to files for mmext."""

import pickle
from pathlib import Path

import torch
from mmengine.config import Config

from mmext.utils.files import atomic_path

from .codetr_config import translate_codetr_config
from .codetr_state_dict import convert_codetr_state_dict

__all__ = ['convert_checkpoint_file', 'convert_config_file']


def convert_checkpoint_file(
    source: str | Path,
    target: str | Path,
    *,
    ema: bool = False,
    trust: bool = False,
    overwrite: bool = False,
) -> tuple[int, int]:
    """Write a public checkpoint with our names.

    Loading does the same in memory, so this is only needed for other readers
    of the file. The weights and ``meta`` are kept; the state of the optimizer
    is left out, because it belongs to another order of parameters.

    Args:
        source: The public checkpoint; a bare state dict is one too.
        target: The file to write.
        ema: Take ``ema_state_dict`` instead of ``state_dict``.
        trust: Unpickle whatever the file holds. Only for a file from a source
            you trust: unpickling can run code.
        overwrite: Replace a ``target`` that exists.

    Returns:
        How many tensors there are, and how many changed their name.

    Raises:
        FileNotFoundError: If there is no ``source``.
        FileExistsError: If ``target`` exists and ``overwrite`` is False.
        ValueError: If the file holds more than tensors and ``trust`` is
            False, or no such state dict, or cannot be converted.
    """
    _check_paths(source, target, overwrite)
    checkpoint = _load(source, trust)
    name = 'ema_state_dict' if ema else 'state_dict'
    state = checkpoint.get(name) if name in checkpoint or ema else checkpoint
    if not isinstance(state, dict) or not all(
        isinstance(value, torch.Tensor) for value in state.values()
    ):
        raise ValueError(
            f'source must hold a {name}, got keys {sorted(checkpoint)[:8]} '
            f'in {source}'
        )
    converted = convert_codetr_state_dict(state)
    content = {'meta': checkpoint.get('meta', {}), 'state_dict': converted}
    if state is checkpoint:
        content['meta'] = {}
    with atomic_path(target) as temporary:
        torch.save(content, temporary)
    return len(converted), len(converted.keys() - state.keys())


def convert_config_file(
    source: str | Path, target: str | Path, *, overwrite: bool = False
) -> None:
    """Write the translated model section of a public config.

    The file has the one key ``model``, for use in a ``_base_`` list next to
    data, schedule and runtime.

    Args:
        source: The public config. Its ``custom_imports`` are not imported.
        target: The ``.py`` file to write.
        overwrite: Replace a ``target`` that exists.

    Raises:
        FileNotFoundError: If there is no ``source``.
        FileExistsError: If ``target`` exists and ``overwrite`` is False.
        ValueError: If the config has no model section, or it cannot be
            translated.
    """
    _check_paths(source, target, overwrite)
    cfg = Config.fromfile(source, import_custom_modules=False)
    if 'model' not in cfg:
        raise ValueError(
            f'source must have a model section, got {sorted(cfg)} in {source}'
        )
    translated = Config({'model': translate_codetr_config(cfg.model)})
    with atomic_path(target) as temporary:
        temporary.write_text(translated.pretty_text)


def _check_paths(
    source: str | Path, target: str | Path, overwrite: bool
) -> None:
    if not Path(source).is_file():
        raise FileNotFoundError(f'source must be a file, got {source}')
    if Path(target).exists() and not overwrite:
        raise FileExistsError(
            f'target must not exist, got {target}; choose another name or '
            'ask to overwrite it'
        )


def _load(source: str | Path, trust: bool) -> dict:
    try:
        content = torch.load(
            source, map_location='cpu', weights_only=not trust
        )
    except pickle.UnpicklingError as error:
        raise ValueError(
            f'source must hold tensors and plain values only, got {source}: '
            f'{str(error).splitlines()[0]}; trust the file if you know where '
            'it comes from'
        ) from error
    if not isinstance(content, dict):
        raise ValueError(
            f'source must hold a dict, got {type(content).__name__} in '
            f'{source}'
        )
    return content
