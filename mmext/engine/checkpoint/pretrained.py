"""A model in a folder: weights as safetensors, all else as JSON.

No file of it is a pickle or a program. :func:`read_pretrained` gives it the
form of a checkpoint, so that whatever reads checkpoints reads it, too.
"""

import json
import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ...checks.config import config_from_json, config_to_json
from ...utils.files import atomic_path, new_tree
from ...utils.safe_load import CONFIG_FILE
from ...version import __version__

WEIGHTS_FILE = 'model.safetensors'
_CARD_FILE = 'README.md'
# Of the layout of the files.
_VERSION = 1


def _check_classes(info: Any) -> dict[str, Any]:
    """``dataset_meta`` as a checkpoint has it."""
    info = info if isinstance(info, Mapping) else {}
    classes, palette = info.get('classes'), info.get('palette')
    if not isinstance(classes, list) or not all(
        isinstance(name, str) for name in classes
    ):
        raise ValueError(
            f'dataset_meta.classes must be a list of names, got {classes!r}'
        )
    if isinstance(palette, list):
        palette = [tuple(color) for color in palette]
    return {'classes': tuple(classes), 'palette': palette}


def read_pretrained(folder: str | os.PathLike) -> dict[str, Any]:
    """Read a folder that :func:`write_pretrained` wrote; runs nothing.

    Only ``config.json`` and ``model.safetensors`` are opened, whatever else
    there is and whatever they say. Returns a checkpoint: ``state_dict``, on
    the CPU, and ``meta`` with ``cfg`` and ``dataset_meta``.
    """
    folder = Path(folder).expanduser()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f'the folder of a shared model must hold {name}, got '
                f'{sorted(os.listdir(folder))} in {str(folder)!r}; weights in '
                'pickles (.pth, .bin) are not read from a folder, name them '
                'as a checkpoint'
            )
    file = folder / CONFIG_FILE
    try:
        content = config_from_json(file.read_text(encoding='utf-8'))
        if content.get('format') != _VERSION:
            raise ValueError(
                f'format must be {_VERSION}, got {content.get("format")!r}; '
                'written by another program, or by a newer mmext'
            )
        if not isinstance(content.get('config'), dict):
            raise ValueError('it has no config')
        info = _check_classes(content.get('dataset_meta'))
    except (TypeError, ValueError) as error:
        raise ValueError(f'{file} cannot be used: {error}') from error
    file = folder / WEIGHTS_FILE
    try:
        weights = load_file(file)
    except (SafetensorError, ValueError) as error:
        raise ValueError(
            f'{file} must be a file of safetensors, got {error} (it is '
            'damaged, cut off, or a pickle by another name; nothing of it '
            'was run)'
        ) from error
    meta = {'cfg': content['config'], 'dataset_meta': info}
    return {'meta': meta, 'state_dict': weights}


def write_pretrained(
    folder: str | os.PathLike,
    *,
    config: Config,
    dataset_meta: Mapping[str, Any],
    state_dict: Mapping[str, torch.Tensor],
    card: str,
) -> None:
    """Write a model into a new folder, whole or not at all.

    Args:
        folder: It must not exist, or be empty.
        config: What the model and its pipeline are built of.
        dataset_meta: With ``classes``, names in the order of the labels, and
            ``palette``, colours ``(red, green, blue)``, or None.
        state_dict: The weights.
        card: Text of ``README.md``.

    Raises:
        FileExistsError: If the folder holds files.
        ValueError: If the config cannot be written as data, see
            :func:`mmext.checks.config.config_to_json`, or ``state_dict`` holds
            something that is no tensor.
    """
    folder = Path(folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise FileExistsError(
            f'the folder must be a new or an empty one, got {str(folder)!r}, '
            'which holds something; name another one, or remove it yourself'
        )
    others = [
        name
        for name, value in state_dict.items()
        if not isinstance(value, torch.Tensor)
    ]
    if others:
        raise ValueError(
            f'state_dict must hold tensors only, got others at {others}; a '
            'model with such a state cannot be shared as safetensors'
        )
    palette = dataset_meta.get('palette')
    if palette is not None and not isinstance(palette, str):
        palette = [[int(part) for part in color] for color in palette]
    content = {
        'format': _VERSION,
        'mmext_version': __version__,
        'dataset_meta': {
            'classes': list(dataset_meta['classes']),
            'palette': palette,
        },
        'config': config_to_json(config),
    }
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    # Entries that share memory become several.
    weights = OrderedDict(
        (name, value.detach().cpu().contiguous().clone())
        for name, value in state_dict.items()
    )
    with new_tree(folder) as tree, atomic_path(tree / WEIGHTS_FILE) as file:
        (tree / CONFIG_FILE).write_text(f'{text}\n', encoding='utf-8')
        (tree / _CARD_FILE).write_text(card, encoding='utf-8')
        save_file(weights, file, metadata={'format': 'pt'})
