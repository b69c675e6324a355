"""Two-stage auxiliary head that hands its positives to a query head.

Shape letters: B images, A sampled RoIs of one image, N RoIs of the batch, C
channels.
"""

from collections.abc import Sequence

import torch
from mmdet.models.roi_heads import StandardRoIHead
from mmdet.models.task_modules.samplers import SamplingResult
from mmdet.models.utils import unpack_gt_instances
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData
from torch import Tensor

from mmext.registry import MODELS

from ..utils.co_positives import CoPositives
from ..utils.precision import float32_region, to_float32

__all__ = ['CoStandardRoIHead']


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
