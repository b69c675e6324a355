"""One-stage auxiliary head that hands its positives to a query head.

Shape letters: B images, C channels, K classes, N anchors of all levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from mmdet.models.dense_heads import ATSSHead
from mmdet.models.losses import FocalLoss
from mmdet.models.utils import multi_apply, unpack_gt_instances
from mmdet.structures import DetDataSample
from mmdet.utils import reduce_mean
from torch import Tensor, nn

from ...registry import MODELS
from ...utils.tensors import float32_region, recomputed, to_float32
from .anchors import (
    NEGATIVE,
    anchor_grid,
    assign_atss,
    assigns_plainly,
    decode_boxes,
)
from .losses import each_iou_loss
from .positives import UNUSED_LABEL, CoPositives


@dataclass(frozen=True)
class _Targets:
    """What the anchors of a batch should predict.

    Attributes:
        anchors: ``(B, N, 4)`` float32, xyxy in pixels.
        labels: ``(B, N)`` int64, ``K`` for a negative.
        label_weights: ``(B, N)`` float32, 0 for an anchor outside.
        boxes: ``(B, N, 4)`` float32, xyxy in pixels, 0 for a negative.
        counts: Anchors per level.
    """

    anchors: Tensor
    labels: Tensor
    label_weights: Tensor
    boxes: Tensor
    counts: list[int]


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

    @property
    def num_anchors(self) -> int:
        """Anchors of a pixel; mmdet warns of its own use of this name."""
        return self.num_base_priors

    def forward(self, x: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
        """Class, box and centerness maps per level, in float32."""
        return to_float32(super().forward(x))

    def forward_single(self, x: Tensor, scale: nn.Module) -> tuple:
        """Class, box and centerness maps of one level.

        For the backward pass a tower keeps what its last convolution gives;
        norm and ReLU, which would double that, are computed again.
        """
        if not torch.is_grad_enabled() or not all(
            len(tower) and type(tower[-1].norm) is nn.GroupNorm
            for tower in (self.cls_convs, self.reg_convs)
        ):
            return super().forward_single(x, scale)

        def convolved(tower: nn.ModuleList) -> Tensor:
            feat = x
            for layer in tower[:-1]:
                feat = layer(feat)
            return tower[-1](feat, norm=False, activate=False)

        def activated(tower: nn.ModuleList, feat: Tensor) -> Tensor:
            return tower[-1].activate(tower[-1].norm(feat))

        def class_map(feat: Tensor) -> Tensor:
            return self.atss_cls(activated(self.cls_convs, feat))

        def box_maps(feat: Tensor) -> tuple[Tensor, Tensor]:
            feat = activated(self.reg_convs, feat)
            boxes = scale(self.atss_reg(feat)).float()
            return boxes, self.atss_centerness(feat)

        scores = recomputed(class_map, convolved(self.cls_convs))
        return scores, *recomputed(box_maps, convolved(self.reg_convs))

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
        maps = self(x)
        with float32_region(x[0]):
            targets = self._assign(maps[0], batch_data_samples)
            losses = self._losses(*maps, targets)
        return losses, self._positives(x, targets, with_feats)

    def _assign(
        self,
        scores: Sequence[Tensor],
        batch_data_samples: Sequence[DetDataSample],
    ) -> _Targets:
        """Targets of the anchors of all levels."""
        sizes = [tuple(score.shape[-2:]) for score in scores]
        device = scores[0].device
        if not assigns_plainly(self, self.assigner, self.sampler):
            return self._assign_as_mmdet(sizes, device, batch_data_samples)
        grid = anchor_grid(
            self,
            sizes,
            [sample.metainfo for sample in batch_data_samples],
            device,
        )
        rows = []
        for i, sample in enumerate(batch_data_samples):
            gts = sample.gt_instances
            boxes = to_float32(gts.bboxes)
            index = assign_atss(self.assigner, grid, grid.image_mask(i), boxes)
            # A row of its own for anchors without a box.
            boxes = torch.cat((boxes, boxes.new_zeros((1, 4))))
            labels = torch.cat(
                (gts.labels, gts.labels.new_full((1,), self.num_classes))
            )
            weights = (index >= NEGATIVE).float()
            if self.train_cfg['pos_weight'] > 0:
                weights = torch.where(
                    index >= 0, float(self.train_cfg['pos_weight']), weights
                )
            index = torch.where(index >= 0, index, len(gts.labels))
            rows.append((labels[index], weights, boxes[index]))
        labels, weights, boxes = (torch.stack(part) for part in zip(*rows))
        anchors = grid.anchors.expand(len(rows), -1, -1)
        return _Targets(anchors, labels, weights, boxes, grid.counts)

    def _assign_as_mmdet(
        self,
        sizes: Sequence[tuple[int, int]],
        device: torch.device,
        batch_data_samples: Sequence[DetDataSample],
    ) -> _Targets:
        """The same by the host's own assigner and sampler."""
        gts, ignored, metas = unpack_gt_instances(batch_data_samples)
        anchors, flags = self.get_anchors(sizes, metas, device=device)
        counts = [len(level) for level in anchors[0]]
        (anchors, labels, label_weights, boxes, *_) = multi_apply(
            self._get_targets_single,
            [torch.cat(levels) for levels in anchors],
            [torch.cat(levels) for levels in flags],
            [counts] * len(gts),
            gts,
            metas,
            [None] * len(gts) if ignored is None else ignored,
        )
        anchors, labels, label_weights, boxes = (
            torch.stack(part)
            for part in (anchors, labels, label_weights, boxes)
        )
        if not self.reg_decoded_bbox:
            positive = (labels < self.num_classes)[..., None]
            boxes = decode_boxes(self.bbox_coder, anchors, boxes)
            boxes = torch.where(positive, boxes, 0.0)
        return _Targets(anchors, labels, label_weights, boxes, counts)

    def _losses(
        self,
        scores: Sequence[Tensor],
        deltas: Sequence[Tensor],
        centernesses: Sequence[Tensor],
        targets: _Targets,
    ) -> dict:
        """Losses per level."""
        positive = targets.labels < self.num_classes
        # mmdet counts at least one positive in each image.
        number = positive.sum(1).clamp(min=1).sum().float()
        # How central the positives are in their boxes, 0 for the others.
        centre = (targets.anchors[..., :2] + targets.anchors[..., 2:]) / 2
        near = centre - targets.boxes[..., :2]
        far = targets.boxes[..., 2:] - centre
        ratio = torch.minimum(near, far) / torch.maximum(near, far)
        wanted = torch.where(positive, ratio.prod(-1), 0.0).sqrt()
        number, total = reduce_mean(torch.stack((number, wanted.sum())))
        classify = self.loss_cls
        if type(classify) is FocalLoss and wanted.device.type == 'cpu':
            # It keeps ten tensors of the size of the logits there, which take
            # more memory than the convolutions and little time.
            classify = partial(recomputed, classify)
        classes = classify(
            _flat(scores, self.cls_out_channels).flatten(0, 1),
            targets.labels.flatten(),
            targets.label_weights.flatten(),
            reduction_override='none',
        )
        boxes = decode_boxes(
            self.bbox_coder, targets.anchors, _flat(deltas, 4)
        )
        overlap = each_iou_loss(
            self.loss_bbox, boxes.flatten(0, 1), targets.boxes.flatten(0, 1)
        )
        centre = self.loss_centerness(
            _flat(centernesses, 1).flatten(),
            wanted.flatten(),
            reduction_override='none',
        )
        overlap = overlap.view_as(wanted) * wanted
        terms = {
            'loss_cls': classes.view(*wanted.shape, -1).sum(-1) / number,
            'loss_bbox': overlap / total.clamp(min=1),
            'loss_centerness': centre.view_as(wanted) * positive / number,
        }
        return {
            name: [level.sum() for level in item.split(targets.counts, 1)]
            for name, item in terms.items()
        }

    def _positives(
        self, x: Sequence[Tensor], targets: _Targets, with_feats: bool
    ) -> CoPositives:
        """The assignment as input of the query head."""
        feats = None
        if with_feats:
            tokens = torch.cat([level.flatten(2) for level in x], 2)
            # Each token carries num_base_priors anchors, next to each other.
            feats = tokens.transpose(1, 2).repeat_interleave(
                self.num_base_priors, dim=1
            )
        return CoPositives(
            boxes=targets.anchors,
            labels=targets.labels.masked_fill(
                targets.label_weights == 0, UNUSED_LABEL
            ),
            targets=targets.boxes,
            feats=feats,
        )


def _flat(maps: Sequence[Tensor], width: int) -> Tensor:
    """Maps ``(B, A * width, H, W)`` of all levels as ``(B, N, width)``."""
    return torch.cat(
        [
            level.permute(0, 2, 3, 1).reshape(len(level), -1, width)
            for level in maps
        ],
        1,
    )
