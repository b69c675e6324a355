"""Where samples come from: a config, or bare files."""

from .folder_source import split_of_folders
from .split_source import SplitSource

__all__ = ['SplitSource', 'split_of_folders']
