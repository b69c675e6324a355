"""The generated shapes as a data set of mmdet."""

from mmdet.datasets import CocoDataset

from mmext.registry import DATASETS

from .shapes_geometry import SHAPE_CLASSES

__all__ = ['ShapesDataset']


@DATASETS.register_module()
class ShapesDataset(CocoDataset):
    """Data set written by ``tools/make_shapes_dataset.py``.

    It is in COCO's format: boxes and RLE masks in ``annotations/``, pictures
    in ``img_dir/``; ``data_prefix=dict(seg='ann_dir/train/')`` adds the class
    per pixel, 0 for the ground and ``label + 1`` for a shape.

    All arguments are those of ``mmdet.CocoDataset``.
    """

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
