"""Generated pictures, and what a config needs to find its data.

This package stays light, so that pictures can be generated without loading
torch: ``mmext.ShapesDataset``, which builds on mmdet, is in
:mod:`mmext.datasets.shapes_dataset`, and ``mmext.ShapesSegDataset``, which
builds on mmseg, in :mod:`mmext.datasets.shapes_seg_dataset`, where the
registry finds them.
"""

from .data_paths import check_data_paths
from .data_root import apply_data_root
from .shapes_generator import ShapesSample, ShapesSpec, draw_sample
from .shapes_geometry import SHAPE_CLASSES
from .shapes_writer import write_shapes_dataset

__all__ = [
    'SHAPE_CLASSES',
    'ShapesSample',
    'ShapesSpec',
    'apply_data_root',
    'check_data_paths',
    'draw_sample',
    'write_shapes_dataset',
]
