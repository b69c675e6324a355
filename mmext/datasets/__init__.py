"""Generated pictures, and what checks and data sets share.

This package stays light, so that none of it needs torch. Data sets are in
modules of their own, where the registry finds them:
:mod:`mmext.datasets.generated`, :mod:`mmext.datasets.lvis`,
:mod:`mmext.datasets.nyuv2`, :mod:`mmext.datasets.unlabelled` and
:mod:`mmext.datasets.yolo`.
"""

from . import box_limits
from .nyuv2_layout import (
    NYUV2_CLASSES,
    classes_of_layout,
    is_layout,
    layout_files,
)
from .scenes_generator import (
    SCENE_CLASSES,
    ScenesSample,
    ScenesSpec,
    draw_scene,
    scene_rays,
    write_scenes_dataset,
)
from .shapes_generator import (
    SHAPE_CLASSES,
    ShapesSample,
    ShapesSpec,
    draw_sample,
)
from .shapes_writer import write_shapes_dataset
from .yolo_labels import (
    PICTURE_SUFFIXES,
    YoloData,
    find_yolo_data,
    read_yolo_labels,
    yolo_label_path,
    yolo_pictures,
)

__all__ = [
    'NYUV2_CLASSES',
    'PICTURE_SUFFIXES',
    'SCENE_CLASSES',
    'SHAPE_CLASSES',
    'ScenesSample',
    'ScenesSpec',
    'ShapesSample',
    'ShapesSpec',
    'YoloData',
    'box_limits',
    'classes_of_layout',
    'draw_sample',
    'draw_scene',
    'find_yolo_data',
    'is_layout',
    'layout_files',
    'read_yolo_labels',
    'scene_rays',
    'write_scenes_dataset',
    'write_shapes_dataset',
    'yolo_label_path',
    'yolo_pictures',
]
