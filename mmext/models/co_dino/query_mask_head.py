"""Masks of the boxes that the query head detects, with scores of their own.

Shape letters: B images, C channels, K classes, R boxes of one image, M
objects of the batch, N RoIs of the batch, H and W of the image.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from mmdet.registry import MODELS as MMDET_MODELS
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox2roi
from mmengine.structures import InstanceData
from torch import Tensor

from ...registry import MODELS
from ...utils.tensors import float32_region, to_float32
from .anchors import assigns_plainly
from .co_roi_head import (
    CoStandardRoIHead,
    instance_maps,
    mask_targets,
    pool_rois,
    rois_by_level,
)
from .region_proposals import RegionProposals

# Of all RoIs whose masks are predicted at once.
MAX_MASKS = 150
# Whose masks the IoU head looks at: 28 x 28 of RoIs of 14 x 14.
_IOU_STAGE = 1


@MODELS.register_module()
class QueryMaskHead(CoStandardRoIHead):
    """Masks of detected boxes, with which the query head is trained as well.

    In training, its RoIs are the boxes of the last decoder layer before any
    NMS, denoising queries included, and those of the ground truth.

    Args:
        mask_roi_extractor: Config; RoIs are as large as the first stage.
        mask_head: Config of type ``mmext.RefineMaskHead``.
        mask_iou_head: Config of type ``mmext.CoMaskIoUHead``, whose IoUs
            the scores of the masks are multiplied with; None for none.
        train_cfg: ``assigner``, a ``mmdet.MaxIoUAssigner``; ``sampler``, a
            ``mmdet.RandomSampler``, of which the positives are used; and
            ``mask_thr_binary``, where the IoU head cuts masks, 0.5.
        test_cfg: ``mask_thr_binary``, where masks are cut.
        init_cfg: As in mmengine.

    Raises:
        ValueError: If ``test_cfg`` has no ``mask_thr_binary``, ``train_cfg``
            has another assigner or sampler, or the RoIs are of another size.

    Source:
        The masks of CO-DETR's ``-Inst`` models, arXiv 2211.12860.
    """

    name = 'mask_head'

    def __init__(
        self,
        mask_roi_extractor: dict,
        mask_head: dict,
        mask_iou_head: dict | None = None,
        *,
        train_cfg: dict | None = None,
        test_cfg: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(
            mask_roi_extractor=mask_roi_extractor,
            mask_head=mask_head,
            train_cfg=train_cfg,
            test_cfg=test_cfg,
            init_cfg=init_cfg,
        )
        self.mask_iou_head = None
        if mask_iou_head is not None:
            self.mask_iou_head = MMDET_MODELS.build(mask_iou_head)
        pooled = self.mask_roi_extractor.roi_layers[0].output_size[0]
        if pooled != self.mask_head.stage_sizes[0]:
            raise ValueError(
                'mask_head.stage_sizes must begin with the size of the RoIs, '
                f'got {self.mask_head.stage_sizes} and an output_size of '
                f'{pooled} in mask_roi_extractor.roi_layer'
            )
        if train_cfg and not assigns_plainly(
            self, self.bbox_assigner, self.bbox_sampler
        ):
            raise ValueError(
                'train_cfg.mask_head must have an assigner of type '
                'mmdet.MaxIoUAssigner and a sampler of type '
                'mmdet.RandomSampler, with settings that need no other boxes '
                f'than detected ones, got {dict(train_cfg)}'
            )

    @property
    def num_classes(self) -> int:
        """Classes of the objects."""
        return self.mask_head.num_classes

    def draw(
        self,
        x: Sequence[Tensor],
        batch_data_samples: Sequence[DetDataSample],
        boxes: Tensor,
    ) -> tuple[Tensor, Callable[[Sequence[int]], dict]]:
        """Draw RoIs, before the host knows how many there are.

        Args:
            x: Maps ``(B, C, H, W)``, finest first.
            batch_data_samples: Samples with ``gt_instances`` and masks.
            boxes: ``(B, R, 4)`` float32, xyxy in pixels.

        Returns:
            Two items: the number of RoIs of each map, on the device, and a
            function that gets them on the host and gives ``loss_mask`` and
            ``loss_mask_iou``.

        Raises:
            ValueError: If a sample has no masks.
        """
        self._check_masks([item.gt_instances for item in batch_data_samples])
        real = torch.ones_like(boxes[..., 0], dtype=torch.bool)
        drawn, matched = self._draw(
            RegionProposals(boxes, real), batch_data_samples
        )
        labels = drawn.labels.flatten()
        images = torch.arange(len(boxes), device=boxes.device)
        images = images.repeat_interleave(drawn.labels.shape[1])
        rois = torch.cat((images[:, None], drawn.boxes.flatten(0, 1)), 1)
        wanted = (labels >= 0) & (labels < self.num_classes)
        order, counts = rois_by_level(self.mask_roi_extractor, rois, wanted)
        masks = [sample.gt_instances.masks for sample in batch_data_samples]
        return counts, partial(
            self._losses_of,
            x,
            order,
            (rois, labels, matched.flatten()),
            masks,
        )

    def _losses_of(
        self,
        x: Sequence[Tensor],
        order: Tensor,
        drawn: Sequence[Tensor],
        masks: Sequence,
        counts: Sequence[int],
    ) -> dict:
        """Losses of the RoIs that ``order`` begins with."""
        index = order[: sum(counts)]
        rois, labels, matched = (item[index] for item in drawn)
        maps = instance_maps(masks, rois.device)
        preds, feats = self._masks(x, rois, labels, counts)
        boxes = rois[:, 1:]
        with float32_region(boxes):
            targets = [
                (mask_targets(maps, boxes, matched, size) >= 0.5).float()
                for size in self.mask_head.stage_sizes
            ]
            losses = {'loss_mask': self.mask_head.loss(preds, targets)}
        if self.mask_iou_head is not None:
            logits = preds[_IOU_STAGE]
            ious = self._mask_ious(feats, logits, labels)
            with float32_region(boxes):
                losses['loss_mask_iou'] = self.mask_iou_head.loss(
                    ious,
                    logits,
                    targets[_IOU_STAGE],
                    shares_in_boxes(maps, boxes, matched),
                    self.train_cfg.get('mask_thr_binary', 0.5),
                )
        return losses

    def _masks(
        self,
        x: Sequence[Tensor],
        rois: Tensor,
        labels: Tensor,
        counts: Sequence[int] | None = None,
        semantic: Sequence[Tensor] | None = None,
    ) -> tuple[list[Tensor], Tensor]:
        """Logits of all stages, and the pooled features."""
        feats = pool_rois(self.mask_roi_extractor, x, rois, counts)
        dtype = next(self.mask_head.parameters()).dtype
        feats = feats.to(dtype)
        if semantic is None:
            semantic = self.mask_head.semantic_maps(x[0].to(dtype))
        rois = rois.to(feats.device, non_blocking=True)
        return self.mask_head(feats, semantic, rois, labels), feats

    def _mask_ious(
        self, feats: Tensor, logits: Tensor, labels: Tensor
    ) -> Tensor:
        """IoUs ``(N,)`` of the RoIs' classes."""
        ious = self.mask_iou_head(feats, logits.to(feats.dtype))
        return ious.gather(1, labels[:, None])[:, 0]

    def _leaves_masks(self, device: torch.device) -> bool:
        return False

    def _detected_masks(
        self, x: Sequence[Tensor], results: Sequence[InstanceData]
    ) -> Sequence[Tensor]:
        """Also adds ``mask_scores`` ``(N,)`` if there is an IoU head."""
        device = x[0].device
        rois = bbox2roi([item.bboxes for item in results])
        labels = torch.cat([item.labels for item in results])
        labels = labels.to(device, non_blocking=True)
        dtype = next(self.mask_head.parameters()).dtype
        semantic = self.mask_head.semantic_maps(x[0].to(dtype))
        masks, ious = [], []
        # At least one part, of no RoI, so that shapes are known.
        for start in range(0, max(len(rois), 1), MAX_MASKS):
            part = slice(start, start + MAX_MASKS)
            preds, feats = self._masks(
                x, rois[part], labels[part], semantic=semantic
            )
            masks.append(self.mask_head.refined(preds).sigmoid())
            if self.mask_iou_head is not None:
                ious.append(
                    self._mask_ious(feats, preds[_IOU_STAGE], labels[part])
                )
        sizes = [len(item) for item in results]
        if ious:
            for item, iou in zip(results, torch.cat(ious).split(sizes)):
                scores = item.scores.to(device, non_blocking=True)
                item.mask_scores = scores * iou.to(scores)
        return torch.cat(masks).split(sizes)


def shares_in_boxes(maps: Tensor, boxes: Tensor, matched: Tensor) -> Tensor:
    """Share of an object's area that is in its box, ``(N,)``.

    Corners are rounded down, and each box has a pixel at least.

    Args:
        maps: ``(M, 1, H, W)`` of 0 and 1.
        boxes: ``(N, 4)`` xyxy in pixels.
        matched: ``(N,)`` int64, index of the box's object.
    """
    height, width = maps.shape[2:]
    # Pixels above and to the left of each corner of a pixel.
    sums = F.pad(to_float32(maps)[:, 0], (1, 0, 1, 0)).cumsum(1).cumsum(2)
    x1, y1, x2, y2 = boxes.clamp(min=0).long().unbind(1)
    x1, x2 = x1.clamp(max=width), x2.clamp(max=width)
    y1, y2 = y1.clamp(max=height), y2.clamp(max=height)
    x2 = torch.maximum(x2, x1 + 1).clamp(max=width)
    y2 = torch.maximum(y2, y1 + 1).clamp(max=height)
    inside = (
        sums[matched, y2, x2]
        - sums[matched, y1, x2]
        - sums[matched, y2, x1]
        + sums[matched, y1, x1]
    )
    return inside / (sums[matched, -1, -1] + 1e-7)
