"""Readers of files: bytes in, facts out, nothing raised for bad bytes."""

from .coco_reader import CocoError, CocoFile, read_coco
from .image_reader import difference_hash, read_image_facts
from .mask_reader import read_mask_facts
from .voc_reader import VocFile, read_voc

__all__ = [
    'CocoError',
    'CocoFile',
    'VocFile',
    'difference_hash',
    'read_coco',
    'read_image_facts',
    'read_mask_facts',
    'read_voc',
]
