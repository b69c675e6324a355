"""The generated shapes as a data set of mmseg."""

from mmseg.datasets import BaseSegDataset

from mmext.registry import DATASETS

from .shapes_dataset import ShapesDataset
from .shapes_geometry import SHAPE_CLASSES

__all__ = ['ShapesSegDataset']


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

    METAINFO = {
        'classes': ('ground', *SHAPE_CLASSES),
        'palette': [(0, 0, 0), *ShapesDataset.METAINFO['palette']],
    }
