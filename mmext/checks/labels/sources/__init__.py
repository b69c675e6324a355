"""Where samples come from: a config, or bare files."""

from ..readers.boxes import read_voc
from ..readers.coco import CocoFile, holds_key, read_coco
from .coco import coco_task
from .config import NothingToCheckError, compares_reduction, splits_of_config
from .folders import read_voc_list, split_of_folders

__all__ = [
    'CocoFile',
    'NothingToCheckError',
    'coco_task',
    'compares_reduction',
    'holds_key',
    'read_coco',
    'read_voc',
    'read_voc_list',
    'split_of_folders',
    'splits_of_config',
]
