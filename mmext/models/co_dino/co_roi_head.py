"""Two-stage auxiliary head that hands its positives to a query head.

Shape letters: B images, C channels, R proposals of one image, S samples of
one image, N RoIs of the batch.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from mmcv.ops import roi_align
from mmdet.models.losses import CrossEntropyLoss, accuracy
from mmdet.models.roi_heads import StandardRoIHead
from mmdet.models.roi_heads.mask_heads import FCNMaskHead
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from mmdet.models.task_modules.samplers import SamplingResult
from mmdet.models.utils import unpack_gt_instances
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox2roi
from mmdet.structures.mask import BitmapMasks, PolygonMasks
from mmengine.structures import InstanceData
from torch import Tensor, nn
from torch.nn.modules.utils import _pair
from torch.nn.utils.rnn import pad_sequence

from ...registry import MODELS
from ...utils.tensors import float32_region, to_device, to_float32
from .anchors import (
    assign_max_iou,
    assigns_plainly,
    decode_boxes,
    draw_samples,
    encode_boxes,
)
from .losses import each_iou_loss
from .positives import UNUSED_LABEL, CoPositives
from .region_proposals import RegionProposals

# Of all masks that are pasted at once: 0.75 GiB of points and values.
MAX_PASTED_PIXELS = 2**26


@MODELS.register_module()
class CoStandardRoIHead(StandardRoIHead):
    """Faster R-CNN head of CO-DETR.

    Arguments, parameters and losses are those of ``mmdet.StandardRoIHead``.
    RoIs are pooled in float32 (mmdet would round their corners to half
    precision), and a batch without any RoI still uses every parameter.

    With ``mask_head`` it also learns masks and samples need
    ``gt_instances.masks``; without ``mask_roi_extractor`` it uses the features
    of the boxes. :meth:`predict_mask` predicts the masks of any boxes.

    Raises:
        ValueError: If there is a ``mask_head`` and ``test_cfg`` has no
            ``mask_thr_binary``, or ``train_cfg`` is given without
            ``mask_size``.

    Source:
        CO-DETR, arXiv 2211.12860. Same state dict as the public port's
        ``CoStandardRoIHead``.
    """

    # Of its part in the detector.
    name = 'roi_head'

    @property
    def num_classes(self) -> int:
        """Classes of the objects."""
        return self.bbox_head.num_classes

    def init_mask_head(
        self, mask_roi_extractor: dict | None, mask_head: dict
    ) -> None:
        """Build the mask head, once its settings are known to be there."""
        needed = [('test_cfg', 'mask_thr_binary', 0.5)]
        if self.train_cfg and self.name == 'roi_head':
            needed.append(('train_cfg', 'mask_size', 28))
        for name, key, value in needed:
            if (getattr(self, name) or {}).get(key) is None:
                raise ValueError(
                    f'{name} of a {self.name} with masks must have {key}, '
                    f'got {dict(getattr(self, name) or {})}; set '
                    f'model.{name}.{self.name}.{key}, such as {value}'
                )
        super().init_mask_head(mask_roi_extractor, mask_head)

    def loss_and_positives(
        self,
        x: Sequence[Tensor],
        proposals: RegionProposals,
        batch_data_samples: Sequence[DetDataSample],
        *,
        with_feats: bool = False,
    ) -> tuple[dict, CoPositives]:
        """Losses, and the sampled RoIs with their assigned boxes.

        With the parts that CO-DETR has, the host waits for the device once,
        to learn how many RoIs each map has; with other assigners, samplers,
        losses and mask heads, and with masks that are polygons or of several
        sizes, it is mmdet's code that samples.

        Args:
            x: Maps ``(B, C, H, W)``, finest first.
            proposals: RoIs of each image. Not edited.
            batch_data_samples: Samples with ``gt_instances``.
            with_feats: Also give the pooled features of the RoIs, averaged
                over the bins.

        Returns:
            Two items: ``loss_cls``, ``loss_bbox`` and ``acc`` (percent), and
            ``loss_mask`` if there is a mask head, divided as in mmdet; and
            the positives.

        Raises:
            ValueError: If there is a mask head and a sample has no masks.
        """
        gts, ignored, _ = unpack_gt_instances(batch_data_samples)
        if self.with_mask:
            self._check_masks(gts)
        if self._is_plain(gts):
            return self._loss_and_positives(
                x, proposals, batch_data_samples, with_feats
            )
        sampled = self._sample(x, proposals.instances(), gts, ignored)
        results = self.bbox_loss(x, sampled)
        losses = dict(results['loss_bbox'])
        if 'loss_cls' not in losses:
            # mmdet leaves the term out when no RoI was sampled; the sum over
            # nothing keeps the classifier in the graph.
            losses['loss_cls'] = results['cls_score'].sum()
            losses['acc'] = losses['loss_cls'].new_zeros(1)
        feats = None
        if with_feats:
            feats = list(
                results['bbox_feats']
                .mean((-2, -1))
                .split([len(result.priors) for result in sampled])
            )
        # Copied before mmdet clips them to the masks, in place on a CPU.
        positives = self._positives(sampled, feats)
        if self.with_mask:
            masks = self.mask_loss(x, sampled, results['bbox_feats'], gts)
            losses.update(masks['loss_mask'])
        return losses, positives

    def _check_masks(self, gts: Sequence[InstanceData]) -> None:
        """Refuse objects without masks."""
        for i, item in enumerate(gts):
            if 'masks' not in item:
                raise ValueError(
                    f'gt_instances must carry masks for a {self.name} with '
                    f'masks, got {sorted(item.keys())} in sample {i}; set '
                    'with_mask=True of LoadAnnotations'
                )

    def _is_plain(self, gts: Sequence[InstanceData]) -> bool:
        """Whether :meth:`_loss_and_positives` does what mmdet would do."""
        head = self.bbox_head
        return (
            (not self.with_mask or self._learns_plain_masks(gts))
            and type(self.bbox_roi_extractor) is SingleRoIExtractor
            and type(head.loss_cls) is CrossEntropyLoss
            and not head.loss_cls.use_sigmoid
            and assigns_plainly(self, self.bbox_assigner, self.bbox_sampler)
        )

    def _learns_plain_masks(self, gts: Sequence[InstanceData]) -> bool:
        """Whether one tensor can hold the masks of all images."""
        masks = [item.masks for item in gts]
        return (
            type(self.mask_head) is FCNMaskHead
            and not self.share_roi_extractor
            and type(self.mask_roi_extractor) is SingleRoIExtractor
            and all(type(item) is BitmapMasks for item in masks)
            and len({(item.height, item.width) for item in masks}) == 1
        )

    def _loss_and_positives(
        self,
        x: Sequence[Tensor],
        proposals: RegionProposals,
        batch_data_samples: Sequence[DetDataSample],
        with_feats: bool,
    ) -> tuple[dict, CoPositives]:
        """Losses and positives from samples in tensors of fixed size."""
        rois, matched = self._draw(proposals, batch_data_samples)
        batch = torch.arange(len(rois.boxes), device=rois.boxes.device)
        flat = torch.cat(
            (
                batch[:, None, None].expand(*rois.labels.shape, 1),
                rois.boxes,
            ),
            -1,
        ).flatten(0, 1)
        labels = rois.labels.flatten()
        drawn = labels >= 0
        order, counts = rois_by_level(self.bbox_roi_extractor, flat, drawn)
        numbers = [counts]
        if self.with_mask:
            masked, masks_of = rois_by_level(
                self.mask_roi_extractor,
                flat,
                drawn & (labels < self.num_classes),
            )
            numbers.append(masks_of)
        # The host waits here, and knows then how many RoIs each map has.
        numbers = torch.cat(numbers).tolist()
        counts, masks_of = numbers[: len(counts)], numbers[len(counts) :]
        order = order[: sum(counts)]
        results = self._bbox_forward(x, flat[order], counts)
        losses = self._losses(
            results,
            flat[order],
            labels[order],
            rois.targets.flatten(0, 1)[order],
        )
        if self.with_mask:
            masked = masked[: sum(masks_of)]
            masks = self._mask_forward(x, flat[masked], counts=masks_of)
            losses['loss_mask'] = self._mask_loss(
                masks['mask_preds'],
                flat[masked, 1:],
                labels[masked],
                matched.flatten()[masked],
                [sample.gt_instances.masks for sample in batch_data_samples],
            )
        feats = None
        if with_feats:
            pooled = results['bbox_feats'].mean((-2, -1))
            feats = pooled.new_zeros((len(flat), pooled.shape[1]))
            feats = feats.index_copy(0, order, pooled)
            feats = feats.view(*rois.labels.shape, -1)
        return losses, replace(rois, feats=feats)

    def _mask_loss(
        self,
        preds: Tensor,
        boxes: Tensor,
        labels: Tensor,
        matched: Tensor,
        masks: Sequence[BitmapMasks],
    ) -> Tensor:
        """Loss of the masks of positives; ``matched`` among all ``masks``."""
        if not len(preds):
            return preds.sum()
        targets = mask_targets(
            instance_maps(masks, boxes.device),
            boxes,
            matched,
            self.train_cfg.mask_size,
        )
        if not self.train_cfg.get('soft_mask_target', False):
            targets = (targets >= 0.5).to(boxes)
        if self.mask_head.class_agnostic:
            labels = torch.zeros_like(labels)
        return self.mask_head.loss_mask(preds, targets, labels)

    def _draw(
        self,
        proposals: RegionProposals,
        batch_data_samples: Sequence[DetDataSample],
    ) -> tuple[CoPositives, Tensor]:
        """Assign and sample; a label of -1 where nothing was drawn.

        Also gives the boxes' numbers ``(B, S)`` among those of the batch.
        """
        rows, start = [], 0
        for i, sample in enumerate(batch_data_samples):
            gts = sample.gt_instances
            gt_boxes = to_float32(gts.bboxes)
            boxes, usable = proposals.boxes[i], proposals.real[i]
            assigned = assign_max_iou(
                self.bbox_assigner, boxes, usable, gt_boxes
            )
            if self.bbox_sampler.add_gt_as_proposals:
                own = torch.arange(len(gt_boxes), device=boxes.device)
                boxes = torch.cat((gt_boxes, boxes))
                assigned = torch.cat((own, assigned))
            drawn = draw_samples(assigned, self.bbox_sampler)
            # A row of its own for an image without boxes or proposals.
            nothing = gt_boxes.new_zeros((1, 4))
            labels = torch.cat((gts.labels, gts.labels.new_zeros(1)))
            index = torch.cat((assigned, assigned.new_zeros(1)))[drawn.index]
            index = torch.where(drawn.positive, index, 0)
            label = torch.where(
                drawn.positive, labels[index], self.num_classes
            )
            target = torch.cat((gt_boxes, nothing))[index]
            rows.append(
                (
                    torch.cat((boxes, nothing))[drawn.index],
                    torch.where(drawn.drawn, label, UNUSED_LABEL),
                    torch.where(drawn.positive[:, None], target, 0.0),
                    index + start,
                )
            )
            start += len(gt_boxes)
        *parts, matched = (torch.stack(part) for part in zip(*rows))
        return CoPositives(*parts), matched

    def _losses(
        self, results: dict, rois: Tensor, labels: Tensor, targets: Tensor
    ) -> dict:
        """Losses of ``bbox_head`` for RoIs all of which were drawn."""
        head = self.bbox_head
        scores, deltas = results['cls_score'], results['bbox_pred']
        count = max(len(labels), 1)
        positive = labels < head.num_classes
        weights = torch.ones_like(targets[:, 0])
        if self.train_cfg.pos_weight > 0:
            weights = torch.where(
                positive, float(self.train_cfg.pos_weight), weights
            )
        if not head.reg_class_agnostic:
            index = labels.clamp(max=head.num_classes - 1)[:, None, None]
            deltas = deltas.unflatten(1, (head.num_classes, 4))
            deltas = deltas.gather(1, index.expand(-1, 1, 4))[:, 0]
        boxes = rois[:, 1:]
        if head.reg_decoded_bbox:
            predicted, wanted = (
                decode_boxes(head.bbox_coder, boxes, deltas),
                targets,
            )
        else:
            wanted = encode_boxes(head.bbox_coder, boxes, targets)
            wanted = torch.where(positive[:, None], wanted, 0.0)
            predicted = deltas
        losses = each_iou_loss(head.loss_bbox, predicted, wanted)
        return {
            'loss_cls': head.loss_cls(
                scores, labels, weights, avg_factor=float(count)
            ),
            'loss_bbox': (losses * positive).sum() / count,
            'acc': accuracy(scores, labels)
            if len(labels)
            else scores.new_zeros(1),
        }

    def _sample(
        self,
        x: Sequence[Tensor],
        rpn_results_list: Sequence[InstanceData],
        gts: Sequence[InstanceData],
        ignored: Sequence[InstanceData | None],
    ) -> list[SamplingResult]:
        """Assign and sample the proposals of each image."""
        sampled = []
        for i, proposals in enumerate(rpn_results_list):
            priors = InstanceData(priors=proposals.bboxes)
            assigned = self.bbox_assigner.assign(priors, gts[i], ignored[i])
            sampled.append(
                self.bbox_sampler.sample(
                    assigned,
                    priors,
                    gts[i],
                    feats=[level[i][None] for level in x],
                )
            )
        return sampled

    def _bbox_forward(
        self,
        x: Sequence[Tensor],
        rois: Tensor,
        counts: Sequence[int] | None = None,
    ) -> dict:
        """Pool in float32, classify under autocast, predict in float32.

        ``counts``: RoIs per map, if they are sorted by it.
        """
        feats = pool_rois(self.bbox_roi_extractor, x, rois, counts)
        # The type of the weights, which .half() changes and autocast does not.
        feats = feats.to(next(self.bbox_head.parameters()).dtype)
        if self.with_shared_head:
            feats = self.shared_head(feats)
        scores, deltas = to_float32(self.bbox_head(feats))
        return {'cls_score': scores, 'bbox_pred': deltas, 'bbox_feats': feats}

    def _mask_forward(
        self,
        x: Sequence[Tensor],
        rois: Tensor | None = None,
        pos_inds: Tensor | None = None,
        bbox_feats: Tensor | None = None,
        counts: Sequence[int] | None = None,
    ) -> dict:
        """As ``_bbox_forward``; ``pos_inds`` of features pooled for boxes."""
        if rois is None:
            feats = bbox_feats[pos_inds.bool()]
        else:
            feats = pool_rois(self.mask_roi_extractor, x, rois, counts)
            if self.with_shared_head:
                feats = self.shared_head(feats)
        # Of a model in half precision, too.
        dtype = next(self.mask_head.parameters()).dtype
        preds = to_float32(self.mask_head(feats.to(dtype)))
        return {'mask_preds': preds, 'mask_feats': feats}

    def predict_mask(
        self,
        x: Sequence[Tensor],
        batch_img_metas: Sequence[dict],
        results_list: list[InstanceData],
        rescale: bool = False,
    ) -> list[InstanceData]:
        """Add the masks of detected boxes.

        On a GPU, the host waits once for the device, to learn how many RoIs
        each map has, and not at all if the results are still on the host.
        With mask heads of other types it is mmdet's code that pastes.

        Args:
            x: Maps ``(B, C, H, W)``, finest first.
            batch_img_metas: Per image ``ori_shape`` and ``scale_factor``.
            results_list: Per image ``bboxes`` ``(N, 4)`` xyxy in pixels of
                the image that the maps are of, and ``labels`` ``(N,)``.
                Edited.
            rescale: Give boxes and masks in pixels of the original image.

        Returns:
            The same results with ``masks`` ``(N, H, W)`` bool. Boxes in
            float64 are rounded to float32, in which mmdet places masks.
        """
        threshold = self.test_cfg.mask_thr_binary
        dtypes = [item.bboxes.dtype for item in results_list]
        for item in results_list:
            item.bboxes = item.bboxes.float()
        device = x[0].device
        if self._leaves_masks(device):
            for item in results_list:
                item.set_data(dict(item.to(device).items()))
            results_list = super().predict_mask(
                x, batch_img_metas, results_list, rescale
            )
        else:
            masks = self._detected_masks(x, results_list)
            for item, meta, part in zip(results_list, batch_img_metas, masks):
                scale = np.float32(meta['scale_factor'])
                size = np.array(meta['ori_shape'][:2])
                if rescale:
                    factor = to_device(scale, item.bboxes.device)
                    item.bboxes = item.bboxes / factor.repeat(2)
                else:
                    size = np.round(size * scale[::-1]).astype(int)
                boxes = item.bboxes.to(device, non_blocking=True)
                item.masks = paste_masks(part, boxes, size.tolist(), threshold)
        for item, dtype in zip(results_list, dtypes):
            item.bboxes = item.bboxes.to(dtype)
        return results_list

    def _leaves_masks(self, device: torch.device) -> bool:
        """Whether it is mmdet's code that predicts masks."""
        plain = type(self.mask_head) is FCNMaskHead
        plain = plain and self.test_cfg.mask_thr_binary >= 0
        return device.type == 'cpu' or not plain

    def _detected_masks(
        self, x: Sequence[Tensor], results: Sequence[InstanceData]
    ) -> Sequence[Tensor]:
        """Probabilities ``(N, 1, h, w)`` of the boxes of each image."""
        rois = bbox2roi([item.bboxes for item in results])
        masks = self._mask_forward(x, rois)['mask_preds']
        if not self.mask_head.class_agnostic:
            labels = torch.cat([item.labels for item in results])
            labels = labels.to(x[0].device, non_blocking=True)
            index = labels[:, None, None, None]
            masks = masks.gather(1, index.expand(-1, 1, *masks.shape[2:]))
        return masks.sigmoid().split([len(item) for item in results])

    def _positives(
        self, sampled: Sequence[SamplingResult], feats: list[Tensor] | None
    ) -> CoPositives:
        """The sampled RoIs as input of the query head."""
        boxes, labels, targets = [], [], []
        for result in sampled:
            positive, negative = result.pos_priors, result.neg_priors
            boxes.append(torch.cat((positive, negative)))
            labels.append(
                torch.cat(
                    (
                        result.pos_gt_labels,
                        result.pos_gt_labels.new_full(
                            (len(negative),), self.bbox_head.num_classes
                        ),
                    )
                )
            )
            targets.append(
                torch.cat((result.pos_gt_bboxes, torch.zeros_like(negative)))
            )
        return CoPositives(
            pad_sequence(boxes, True),
            pad_sequence(labels, True, UNUSED_LABEL),
            pad_sequence(targets, True),
            None if feats is None else pad_sequence(feats, True),
        )


def instance_maps(
    masks: Sequence[BitmapMasks | PolygonMasks], device: torch.device
) -> Tensor:
    """Masks of all images' objects ``(M, 1, H, W)``, float32 of 0 and 1.

    Those of smaller images are padded, at the bottom and on the right.
    """
    maps = [item.to_ndarray() for item in masks]
    height, width = (max(item.shape[i] for item in maps) for i in (1, 2))
    maps = [
        np.pad(item, ((0, 0), (0, height - h), (0, width - w)))
        for item, (_, h, w) in ((item, item.shape) for item in maps)
    ]
    return to_device(np.concatenate(maps), device).float()[:, None]


def mask_targets(
    maps: Tensor, boxes: Tensor, matched: Tensor, size: int
) -> Tensor:
    """What of an object is in its box, ``(N, size, size)`` from 0 to 1.

    ``maps``: Of :func:`instance_maps`; ``boxes``: ``(N, 4)`` xyxy;
    ``matched``: ``(N,)``, index of the box's object.
    """
    if not len(boxes):
        return boxes.new_zeros((0, *_pair(size)))
    height, width = maps.shape[2:]
    limit = boxes.new_tensor([width, height, width, height])
    boxes = boxes.clamp(min=0).minimum(limit)
    rois = torch.cat((matched[:, None].to(boxes), boxes), 1)
    return roi_align(
        maps.to(boxes), rois, _pair(size), *(1.0, 0, 'avg', True)
    )[:, 0]


def paste_masks(
    masks: Tensor, boxes: Tensor, size: Sequence[int], threshold: float
) -> Tensor:
    """Masks of boxes in their image.

    As mmdet's on a GPU, which asks whether boxes are empty, and waits.

    Args:
        masks: Probabilities ``(N, 1, h, w)``.
        boxes: ``(N, 4)`` float32, xyxy in pixels of the image.
        size: Height and width of the image.
        threshold: Least probability of the object.

    Returns:
        ``(N, H, W)`` bool.
    """
    height, width = size
    pasted = boxes.new_empty((len(boxes), *size), dtype=torch.bool)
    points = []
    for i, count in ((0, width), (1, height)):
        first, last = boxes[:, i, None], boxes[:, i + 2, None]
        centers = torch.arange(count, device=boxes.device).to(boxes) + 0.5
        # From -1 to 1 in the box.
        at = (centers - first) / (last - first) * 2 - 1
        points.append(at.masked_fill(at.isinf(), 0))
    x, y = points[0][:, None].expand(-1, height, -1), points[1][..., None]
    step = max(MAX_PASTED_PIXELS // max(height * width, 1), 1)
    for start in range(0, len(boxes), step):
        part = slice(start, start + step)
        grid = torch.stack((x[part], y[part].expand(-1, -1, width)), 3)
        values = F.grid_sample(masks[part].float(), grid, align_corners=False)
        pasted[part] = values[:, 0] >= threshold
    return pasted


def rois_by_level(
    extractor: SingleRoIExtractor, rois: Tensor, wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """Order by map, unwanted ones last, and how many wanted a map has."""
    maps = extractor.num_inputs
    level = extractor.map_roi_levels(rois, maps)
    level = torch.where(wanted, level, maps)
    counts = level[:, None] == torch.arange(maps, device=level.device)
    return level.argsort(stable=True), counts.sum(0)


def pool_rois(
    extractor: nn.Module,
    x: Sequence[Tensor],
    rois: Tensor,
    counts: Sequence[int] | None,
) -> Tensor:
    """Features of RoIs, in float32.

    ``counts``: RoIs per map, if they are sorted by it; otherwise the host
    waits for them, once, unless it has the RoIs.
    """
    device = x[0].device
    levels = [to_float32(level) for level in x[: extractor.num_inputs]]
    with float32_region(x[0]):
        if type(extractor) is not SingleRoIExtractor:
            return extractor(levels, rois.to(device))
        order = None
        if counts is None:
            rois = rois.to(levels[0].dtype)
            wanted = torch.ones_like(rois[:, 0], dtype=torch.bool)
            order, counts = rois_by_level(extractor, rois, wanted)
            counts = counts.tolist()
            rois = rois[order].to(device, non_blocking=True)
            order = order.to(device, non_blocking=True)
        parts = zip(extractor.roi_layers, levels, rois.split(counts))
        feats = torch.cat([pool(*part) for pool, *part in parts])
        if order is None:
            return feats
        return torch.empty_like(feats).index_copy(0, order, feats)
