"""Rules, one file a family; importing this fills the list of them."""

from . import (
    classes,
    coco_file,
    config_lint,
    det_boxes,
    duplicates,
    images,
    pairs,
    seg_files,
    seg_values,
    voc_file,
)
from .registry import (
    RULES,
    Rule,
    describe_rules,
    found,
    rule,
    select_rules,
)

__all__ = [
    'RULES',
    'Rule',
    'classes',
    'coco_file',
    'config_lint',
    'describe_rules',
    'det_boxes',
    'duplicates',
    'found',
    'images',
    'pairs',
    'rule',
    'seg_files',
    'seg_values',
    'select_rules',
    'voc_file',
]
