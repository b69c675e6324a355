"""Where samples come from: a config, or bare files."""

from ..readers.coco import CocoFile, read_coco
from ..readers.panoptic import holds_key
from ..readers.voc import read_voc
from .coco import coco_task
from .config import compares_reduction, read_heads, splits_of_config
from .folder import split_of_folders
from .ignore_places import default_of, ignored_value, read_ignore_places
from .leaves import NothingToCheckError
from .voc import read_voc_list

__all__ = [
    'CocoFile',
    'NothingToCheckError',
    'coco_task',
    'compares_reduction',
    'default_of',
    'holds_key',
    'ignored_value',
    'read_coco',
    'read_heads',
    'read_ignore_places',
    'read_voc',
    'read_voc_list',
    'split_of_folders',
    'splits_of_config',
]
