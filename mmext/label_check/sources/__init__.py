"""Where samples come from: a config, or bare files."""

from .config import (
    NothingToCheckError,
    read_heads,
    read_ignore_places,
    splits_of_config,
)
from .folder import split_of_folders

__all__ = [
    'NothingToCheckError',
    'read_heads',
    'read_ignore_places',
    'split_of_folders',
    'splits_of_config',
]
