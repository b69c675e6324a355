"""Where samples come from: a config, or bare files."""

from .coco_split import split_of_coco
from .folder_source import split_of_folders
from .split_source import SplitSource
from .voc_split import splits_of_voc

__all__ = [
    'SplitSource',
    'split_of_coco',
    'split_of_folders',
    'splits_of_voc',
]
