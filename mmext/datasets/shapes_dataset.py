"""The generated shapes as a data set of mmdet."""

from mmdet.datasets import CocoDataset
from mmseg.datasets import BaseSegDataset

from ..registry import DATASETS
from .shapes_geometry import SHAPE_CLASSES


@DATASETS.register_module()
class ShapesDataset(CocoDataset):
    """Data set written by ``tools/make_shapes_dataset.py``.

    It is in COCO's format: boxes and RLE masks in ``annotations/``, pictures
    in ``img_dir/``; ``data_prefix=dict(seg='ann_dir/train/')`` adds the class
    per pixel, 0 for the ground and ``label + 1`` for a shape.

    All arguments are those of ``mmdet.CocoDataset``.
    """

    GENERATED_BY = 'make_shapes_dataset.py'
    METAINFO = {
        'classes': SHAPE_CLASSES,
        'palette': [
            (220, 20, 60),
            (30, 144, 255),
            (50, 205, 50),
            (255, 165, 0),
            (186, 85, 211),
            (0, 206, 209),
        ],
    }


@DATASETS.register_module()
class ShapesSegDataset(BaseSegDataset):
    """Semantic masks written by ``tools/make_shapes_dataset.py``.

    Pictures are in ``img_dir/<split>/``, masks in ``ann_dir/<split>/``. There
    are seven classes: 0 is the ground, and a shape has its label in
    :class:`~mmext.datasets.shapes_dataset.ShapesDataset` plus 1. No pixel is
    ignored.

    All arguments are those of ``mmseg.BaseSegDataset``; ``data_prefix`` gives
    the two folders as ``img_path`` and ``seg_map_path``.
    """

    GENERATED_BY = 'make_shapes_dataset.py'
    METAINFO = {
        'classes': ('ground', *SHAPE_CLASSES),
        'palette': [(0, 0, 0), *ShapesDataset.METAINFO['palette']],
    }
