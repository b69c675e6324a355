"""Generated pictures, and the limits of boxes that all checks share.

This package stays light, so that neither needs torch:
``mmext.ShapesDataset`` and ``mmext.ShapesSegDataset``, which build on mmdet
and mmseg, are in :mod:`mmext.datasets.shapes_dataset`, where the registry
finds them.
"""

from . import box_limits
from .shapes_generator import ShapesSample, ShapesSpec, draw_sample
from .shapes_geometry import SHAPE_CLASSES
from .shapes_writer import write_shapes_dataset

__all__ = [
    'SHAPE_CLASSES',
    'ShapesSample',
    'ShapesSpec',
    'box_limits',
    'draw_sample',
    'write_shapes_dataset',
]
