"""Rules, one file a family; importing this fills the list of them."""

from . import classes as classes
from . import coco_file as coco_file
from . import config_lint as config_lint
from . import det_boxes as det_boxes
from . import duplicates as duplicates
from . import files as files
from . import ignore_values as ignore_values
from . import maps as maps
from . import pairs as pairs
from . import panoptic as panoptic
from .registry import RULES

__all__ = [
    'RULES',
]
