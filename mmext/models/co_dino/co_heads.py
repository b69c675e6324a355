"""Two-stage auxiliary head that hands its positives to a query head.

Shape letters: B images, A sampled RoIs of one image, N RoIs of the batch, C
channels.
"""

from collections.abc import Sequence

import torch
from mmdet.models.dense_heads import ATSSHead
from mmdet.models.roi_heads import StandardRoIHead
from mmdet.models.task_modules.samplers import SamplingResult
from mmdet.models.utils import (
    images_to_levels,
    multi_apply,
    unpack_gt_instances,
)
from mmdet.structures import DetDataSample
from mmdet.utils import reduce_mean
from mmengine.structures import InstanceData
from torch import Tensor

from ...registry import MODELS
from ...utils.precision import float32_region, to_float32
from .positives import CoPositives

__all__ = [
    'CoATSSHead',
    'CoStandardRoIHead',
]


@MODELS.register_module()
class CoStandardRoIHead(StandardRoIHead):
    """Faster R-CNN head of CO-DETR.

    Arguments, parameters and losses are those of ``mmdet.StandardRoIHead``.
    RoIs are pooled in float32 (mmdet would round their corners to half
    precision), and a batch without any RoI still uses every parameter.

    Source:
        CO-DETR, arXiv 2211.12860. Same state dict as the public port's
        ``CoStandardRoIHead``.
    """

    def loss_and_positives(
        self,
        x: Sequence[Tensor],
        rpn_results_list: Sequence[InstanceData],
        batch_data_samples: Sequence[DetDataSample],
        *,
        with_feats: bool = False,
    ) -> tuple[dict, CoPositives]:
        """Losses, and the sampled RoIs with their assigned boxes.

        Args:
            x: Maps ``(B, C, H, W)``, finest first.
            rpn_results_list: Per image ``bboxes`` ``(R, 4)`` xyxy in pixels.
                Not edited.
            batch_data_samples: Samples with ``gt_instances``.
            with_feats: Also give the pooled features of the RoIs, averaged
                over the bins.

        Returns:
            Two items: ``loss_cls``, ``loss_bbox`` and ``acc`` (percent), and
            the mask losses if there is a mask head, divided as in mmdet; and
            the positives.
        """
        gts, ignored, _ = unpack_gt_instances(batch_data_samples)
        sampled = self._sample(x, rpn_results_list, gts, ignored)
        results = self.bbox_loss(x, sampled)
        losses = dict(results['loss_bbox'])
        if 'loss_cls' not in losses:
            # mmdet leaves the term out when no RoI was sampled; the sum over
            # nothing keeps the classifier in the graph.
            losses['loss_cls'] = results['cls_score'].sum()
            losses['acc'] = losses['loss_cls'].new_zeros(1)
        if self.with_mask:
            losses.update(
                self.mask_loss(x, sampled, results['bbox_feats'], gts)[
                    'loss_mask'
                ]
            )
        feats = None
        if with_feats:
            feats = list(
                results['bbox_feats']
                .mean((-2, -1))
                .split([len(result.priors) for result in sampled])
            )
        return losses, self._positives(sampled, feats)

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

    def _bbox_forward(self, x: Sequence[Tensor], rois: Tensor) -> dict:
        """Pool in float32, classify under autocast, predict in float32."""
        with float32_region(x[0]):
            feats = self.bbox_roi_extractor(
                [to_float32(level) for level in x][
                    : self.bbox_roi_extractor.num_inputs
                ],
                rois,
            )
        if self.with_shared_head:
            feats = self.shared_head(feats)
        scores, deltas = to_float32(self.bbox_head(feats))
        return {'cls_score': scores, 'bbox_pred': deltas, 'bbox_feats': feats}

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
        return CoPositives(boxes, labels, targets, feats)


# A label that is neither a class nor background is never chosen as a query.
UNUSED_LABEL = -1


@MODELS.register_module()
class CoATSSHead(ATSSHead):
    """One-stage auxiliary head of CO-DETR.

    Arguments, parameters and losses are those of ``mmdet.ATSSHead``. The
    convolutions follow autocast; predictions leave them in float32, so that
    boxes are decoded, compared and averaged in float32.

    Source:
        ATSS, arXiv 1912.02424; CO-DETR, arXiv 2211.12860. Same state dict as
        the public port's ``CoATSSHead``.
    """

    def forward(self, x: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
        """Class, box and centerness maps per level, in float32."""
        return to_float32(super().forward(x))

    def loss_and_positives(
        self,
        x: Sequence[Tensor],
        batch_data_samples: Sequence[DetDataSample],
        *,
        with_feats: bool = False,
    ) -> tuple[dict, CoPositives]:
        """Losses, and the anchors with their assigned boxes.

        Args:
            x: Maps ``(B, C, H, W)``, one per anchor level.
            batch_data_samples: Samples with ``gt_instances``.
            with_feats: Also give the features at the anchors.

        Returns:
            Two items: ``loss_cls``, ``loss_bbox`` and ``loss_centerness``,
            each a list with one scalar per level, divided by the mean number
            of positives over the ranks (boxes: by the mean sum of the
            centerness targets), at least 1; and the positives, in which
            anchors outside the image have the label -1.
        """
        gts, ignored, metas = unpack_gt_instances(batch_data_samples)
        scores, deltas, centernesses = self(x)
        with float32_region(scores[0]):
            assigned = self._assign(scores, gts, ignored, metas)
            losses = self._losses(scores, deltas, centernesses, assigned)
        return losses, self._positives(x, assigned, with_feats)

    def _assign(
        self,
        scores: Sequence[Tensor],
        gts: Sequence[InstanceData],
        ignored: Sequence[InstanceData | None],
        metas: Sequence[dict],
    ) -> dict:
        """Targets per image over the anchors of all levels."""
        sizes = [score.shape[-2:] for score in scores]
        anchors, flags = self.get_anchors(
            sizes, metas, device=scores[0].device
        )
        counts = [len(level) for level in anchors[0]]
        if ignored is None:
            ignored = [None] * len(gts)
        (all_anchors, labels, label_weights, box_targets, _, _, _, sampled) = (
            multi_apply(
                self._get_targets_single,
                [torch.cat(levels) for levels in anchors],
                [torch.cat(levels) for levels in flags],
                [counts] * len(gts),
                gts,
                metas,
                ignored,
            )
        )
        return {
            'anchors': all_anchors,
            'labels': labels,
            'label_weights': label_weights,
            'box_targets': box_targets,
            'num_positives': sum(result.avg_factor for result in sampled),
            'counts': counts,
        }

    def _losses(
        self,
        scores: Sequence[Tensor],
        deltas: Sequence[Tensor],
        centernesses: Sequence[Tensor],
        assigned: dict,
    ) -> dict:
        """Losses per level."""
        per_level = [
            images_to_levels(assigned[key], assigned['counts'])
            for key in ('anchors', 'labels', 'label_weights', 'box_targets')
        ]
        anchors, labels, label_weights, box_targets = per_level
        avg_factor = reduce_mean(
            scores[0].new_tensor(float(assigned['num_positives']))
        ).item()
        loss_cls, loss_bbox, loss_centerness, sums = multi_apply(
            self.loss_by_feat_single,
            anchors,
            scores,
            deltas,
            centernesses,
            labels,
            label_weights,
            box_targets,
            avg_factor=avg_factor,
        )
        box_avg = reduce_mean(sum(sums)).clamp(min=1).item()
        return {
            'loss_cls': loss_cls,
            'loss_bbox': [loss / box_avg for loss in loss_bbox],
            'loss_centerness': loss_centerness,
        }

    def _positives(
        self, x: Sequence[Tensor], assigned: dict, with_feats: bool
    ) -> CoPositives:
        """The assignment as input of the query head."""
        labels = [
            label.masked_fill(weight == 0, UNUSED_LABEL)
            for label, weight in zip(
                assigned['labels'], assigned['label_weights']
            )
        ]
        feats = None
        if with_feats:
            tokens = torch.cat([level.flatten(2) for level in x], 2).transpose(
                1, 2
            )
            # Each token carries num_base_priors anchors, next to each other.
            feats = list(tokens.repeat_interleave(self.num_base_priors, dim=1))
        return CoPositives(
            boxes=list(assigned['anchors']),
            labels=labels,
            targets=self._target_boxes(assigned),
            feats=feats,
        )

    def _target_boxes(self, assigned: dict) -> list[Tensor]:
        """Targets as xyxy boxes, also where the head regresses deltas."""
        if self.reg_decoded_bbox:
            return list(assigned['box_targets'])
        return [
            self.bbox_coder.decode(anchors, deltas)
            for anchors, deltas in zip(
                assigned['anchors'], assigned['box_targets']
            )
        ]
