"""Files of weights: the form that models are shared in, and conversion."""

import os
import pickle
from pathlib import Path

from .archive import DamagedFileError, check_archive
from .files import is_stream
from .safe_load import load_torch

# Of a folder that a model was shared in.
CONFIG_FILE = 'config.json'


def is_pretrained(path: str | os.PathLike) -> bool:
    """Whether a path is a folder that a model was shared in."""
    return Path(path).expanduser().joinpath(CONFIG_FILE).is_file()


def check_paths(
    source: str | Path, target: str | Path, overwrite: bool
) -> None:
    """Raise if there is no source, or a target that must not be replaced.

    Raises:
        FileNotFoundError: If ``source`` is no file.
        FileExistsError: If ``target`` exists and ``overwrite`` is False.
    """
    if not Path(source).is_file():
        raise FileNotFoundError(f'source must be a file, got {source}')
    if Path(target).exists() and not (overwrite or is_stream(target)):
        raise FileExistsError(
            f'target must not exist, got {target}; choose another name or '
            'ask to overwrite it'
        )


def read_weights(source: str | Path, trust: bool) -> dict:
    """The dict that a checkpoint holds, on the CPU.

    Args:
        source: The file; its checksums are checked first.
        trust: Read any type, which can run code.

    Raises:
        ValueError: If the file is damaged or no checkpoint, holds no dict,
            or holds more than weights and ``trust`` is False.
    """
    try:
        check_archive(source)
        content = load_torch(source, trust=trust, map_location='cpu')
    except DamagedFileError as error:
        raise ValueError(
            f'source is damaged, got {source}: {error}; download it again'
        ) from error
    except pickle.UnpicklingError as error:
        raise ValueError(
            f'source must be a checkpoint of PyTorch, got {source}: '
            f'{" ".join(str(error).split())[:200]}; download it again'
        ) from error
    if not isinstance(content, dict):
        raise ValueError(
            f'source must hold a dict, got {type(content).__name__} in '
            f'{source}'
        )
    return content
