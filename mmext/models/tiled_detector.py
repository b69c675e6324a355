"""Merge the boxes of the tiles of an image."""

from collections.abc import Sequence

import torch
from mmcv.ops import batched_nms
from mmdet.models import DetTTAModel
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox_overlaps
from mmengine.structures import InstanceData
from torch import Tensor

from ..registry import MODELS

# A box that ends closer to the border of its tile is cut there, in pixels.
_BORDER = 2.0
# The share of a cut box that a whole one of its class has to cover.
_COVERED = 0.7


@MODELS.register_module()
class TiledDetector(DetTTAModel):
    """Detector of the views that :class:`mmext.TileViews` cuts.

    Boxes are shifted to their position in the picture. A box that the border
    of its tile cuts is dropped if a larger box of its class covers 0.7 of it;
    then the NMS of ``tta_cfg``, class by class, removes duplicates of several
    views. Flipped views are flipped back first, as ``mmdet.DetTTAModel`` does.
    One picture at a time: pictures have different numbers of tiles.

    Args:
        tta_cfg: ``nms``, and ``max_per_img``, the most boxes that are kept.
        **kwargs: ``module``, the detector.
    """

    def merge_preds(
        self, data_samples_list: Sequence[Sequence[DetDataSample]]
    ) -> list[DetDataSample]:
        """The first view of each picture, the whole one, with all boxes.

        Raises:
            ValueError: If the detector predicts masks.
        """
        return [self._merge(views) for views in data_samples_list]

    def _merge(self, views: Sequence[DetDataSample]) -> DetDataSample:
        height, width = views[0].ori_shape[:2]
        parts = [self._location(view, width, height) for view in views]
        boxes, cut = (torch.cat(item) for item in zip(*parts))
        instances = [view.pred_instances for view in views]
        scores = torch.cat([item.scores for item in instances])
        labels = torch.cat([item.labels for item in instances])
        merged = InstanceData()
        if len(boxes):
            kept = ~_repeated(boxes, labels, cut)
            boxes, scores, labels = boxes[kept], scores[kept], labels[kept]
            result, index = batched_nms(
                boxes, scores, labels, dict(self.tta_cfg['nms'])
            )
            limit = self.tta_cfg['max_per_img']
            boxes, scores = result[:limit, :4], result[:limit, 4]
            labels = labels[index][:limit]
        merged.bboxes, merged.scores, merged.labels = boxes, scores, labels
        views[0].pred_instances = merged
        return views[0]

    def _location(
        self, view: DetDataSample, width: int, height: int
    ) -> tuple[Tensor, Tensor]:
        """Boxes of a view in the picture, and which of them are cut."""
        instances = view.pred_instances
        if 'masks' in instances:
            raise ValueError(
                'masks of tiles cannot be merged, got a model that predicts '
                'masks; test it without --tile'
            )
        boxes, meta = instances.bboxes, view.metainfo
        if meta.get('flip'):
            boxes = self.merge_aug_bboxes([boxes], None, [meta])
        x1, y1, x2, y2 = meta['tile']
        boxes = boxes + boxes.new_tensor((x1, y1, x1, y1))
        # The border of a tile, unless it is that of the picture.
        inner = boxes.new_tensor((x1, y1, x2, y2))
        whole = boxes.new_tensor((0, 0, width, height))
        near = (boxes - inner).abs() < _BORDER
        return boxes, (near & (inner != whole)).any(1)


def _repeated(boxes: Tensor, labels: Tensor, cut: Tensor) -> Tensor:
    """``(N,)`` bool: cut boxes that a larger one of their class covers."""
    repeated = torch.zeros_like(cut)
    index = cut.nonzero()[:, 0]
    sizes = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1)
    covered = bbox_overlaps(boxes[index], boxes, mode='iof') >= _COVERED
    larger = sizes > sizes[index, None]
    same = labels == labels[index, None]
    repeated[index] = (covered & larger & same).any(1)
    return repeated
