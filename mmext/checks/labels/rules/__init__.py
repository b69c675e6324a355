"""Rules, one file a family; importing this fills the list of them."""

from . import box_formats as box_formats
from . import classes as classes
from . import coco_file as coco_file
from . import config as config
from . import det_boxes as det_boxes
from . import duplicates as duplicates
from . import files as files
from . import maps as maps
from .registry import RULES

__all__ = [
    'RULES',
]
