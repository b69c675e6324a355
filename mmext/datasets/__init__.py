"""Generated pictures, and what checks and data sets share.

This package stays light, so that none of it needs torch. Data sets are in
modules of their own, where the registry finds them:
:mod:`mmext.datasets.shapes_dataset`, :mod:`mmext.datasets.nyuv2` and
:mod:`mmext.datasets.generated_categorical`.
"""

from . import box_limits
from .scenes_generator import (
    SCENE_CLASSES,
    ScenesSample,
    ScenesSpec,
    draw_scene,
    scene_rays,
    write_scenes_dataset,
)
from .shapes_generator import ShapesSample, ShapesSpec, draw_sample
from .shapes_geometry import SHAPE_CLASSES
from .shapes_writer import write_shapes_dataset

__all__ = [
    'SCENE_CLASSES',
    'SHAPE_CLASSES',
    'ScenesSample',
    'ScenesSpec',
    'ShapesSample',
    'ShapesSpec',
    'box_limits',
    'draw_sample',
    'draw_scene',
    'scene_rays',
    'write_scenes_dataset',
    'write_shapes_dataset',
]
