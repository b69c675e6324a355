"""Mask head in stages, each finer than the last, and a head of mask IoUs.

Shape letters: B images, C channels, K classes, N RoIs, S side of a stage's
masks, H and W of a map.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmcv.cnn import ConvModule
from mmcv.ops import roi_align
from mmdet.models.roi_heads.mask_heads import MaskIoUHead
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...registry import MODELS
from ...utils.tensors import float32_region, to_float32
from ..simple_feature_pyramid import ChannelNorm

# A pixel is at the boundary where more of its window than this is different.
_LEAST_DIFFERENT = 0.1
# Stages that see every pixel, at most: those after them refine boundaries.
_START_STAGE = 1


class _Fusion(nn.Module):
    """Sum of three dilated convolutions and the mean of each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        for i, dilation in enumerate((1, 3, 5), 1):
            conv = ConvModule(
                channels, channels, 3, padding=dilation, dilation=dilation
            )
            self.add_module(f'dilation_conv_{i}', conv)
        self.merge_conv = ConvModule(channels, channels, 1, act_cfg=None)

    def forward(self, x: Tensor) -> Tensor:
        fused = (
            self.dilation_conv_1(x)
            + self.dilation_conv_2(x)
            + self.dilation_conv_3(x)
            + x.mean((-2, -1), keepdim=True)
        )
        return self.merge_conv(fused)


class _Stage(nn.Module):
    """Features of RoIs at twice the size, with what the map knows of them."""

    def __init__(self, semantic: int, channels: int) -> None:
        super().__init__()
        self.semantic_transform_in = nn.Conv2d(semantic, channels, 1)
        self.fuse_conv = nn.ModuleList(
            [nn.Conv2d(2 * channels + 1, channels, 1), _Fusion(channels)]
        )
        self.fuse_transform_out = nn.Conv2d(channels, channels // 2 - 1, 1)

    def forward(self, feats: Tensor, pooled: Tensor, logits: Tensor) -> Tensor:
        masks = logits.sigmoid()
        feats = torch.cat((feats, pooled.to(feats.dtype), masks), 1)
        for conv in (*self.fuse_conv, self.fuse_transform_out):
            feats = conv(feats).relu()
        return torch.cat((feats, masks), 1)


@MODELS.register_module()
class RefineMaskHead(BaseModule):
    """Mask head that refines boundaries from stage to stage.

    Each stage predicts masks of the RoIs' classes, and then fuses the RoIs'
    features with those masks and with features pooled from the finest map
    of the image. The first two stages learn all pixels, the further ones
    those near the boundary of the stage before or of its target.

    Args:
        num_classes: ``K``.
        num_convs_instance: Convolutions of the RoIs' features.
        num_convs_semantic: Convolutions of the finest map.
        in_channels: Of RoIs and map.
        conv_out_channels: Of the first stage; each has half of the last.
        semantic_stride: Pixels of the image per pixel of the finest map.
        stage_sizes: Sides of the masks, each twice the one before; the first
            is that of the RoIs' features.
        stage_loss_weights: Of the loss of each stage.
        last_class_agnostic: The last stage has one mask for all classes.
        boundary_width: Pixels that the loss calls near.
        loss_weight: Of the sum.
        init_cfg: As in mmengine.

    Raises:
        ValueError: If there are not at least two stages, each twice as large
            as the one before, with a loss weight each.

    Source:
        RefineMask, arXiv 2104.08569; state dict and values of the original
        CO-DETR's ``SimpleRefineMaskHead`` with ``BARCrossEntropyLoss``.
    """

    def __init__(
        self,
        num_classes: int = 80,
        *,
        num_convs_instance: int = 1,
        num_convs_semantic: int = 2,
        in_channels: int = 256,
        conv_out_channels: int = 256,
        semantic_stride: int = 4,
        stage_sizes: Sequence[int] = (14, 28, 56, 112),
        stage_loss_weights: Sequence[float] = (0.5, 0.75, 0.75, 1.0),
        last_class_agnostic: bool = True,
        boundary_width: int = 2,
        loss_weight: float = 1.0,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg or {'type': 'Kaiming', 'layer': 'Conv2d'})
        sizes, weights = tuple(stage_sizes), tuple(stage_loss_weights)
        twice = [2 * size for size in sizes[:-1]]
        if len(sizes) < 2 or list(sizes[1:]) != twice:
            raise ValueError(
                'stage_sizes must be two or more sides, each twice the one '
                f'before, got {sizes}'
            )
        if len(weights) != len(sizes):
            raise ValueError(
                'stage_loss_weights must have one weight per stage '
                f'({len(sizes)}), got {weights}'
            )
        self.num_classes = num_classes
        self.semantic_stride = semantic_stride
        self.stage_sizes = sizes
        self.stage_loss_weights = weights
        self.boundary_width = boundary_width
        self.loss_weight = loss_weight

        def convs(count: int) -> nn.ModuleList:
            return nn.ModuleList(
                ConvModule(
                    conv_out_channels if i else in_channels,
                    conv_out_channels,
                    3,
                    padding=1,
                    norm_cfg={'type': ChannelNorm},
                )
                for i in range(count)
            )

        self.instance_convs = convs(num_convs_instance)
        self.semantic_convs = convs(num_convs_semantic)
        channels = [conv_out_channels // 2**i for i in range(len(sizes))]
        self.stages = nn.ModuleList(
            _Stage(conv_out_channels, count) for count in channels[:-1]
        )
        classes = [num_classes] * len(sizes)
        if last_class_agnostic:
            classes[-1] = 1
        self.stage_instance_logits = nn.ModuleList(
            nn.Conv2d(*pair, 1) for pair in zip(channels, classes)
        )

    def semantic_maps(self, feat: Tensor) -> list[Tensor]:
        """What the stages pool from, of the finest map ``(B, C, H, W)``."""
        for conv in self.semantic_convs:
            feat = conv(feat)
        return [
            stage.semantic_transform_in(feat).relu() for stage in self.stages
        ]

    def forward(
        self,
        feats: Tensor,
        maps: Sequence[Tensor],
        rois: Tensor,
        labels: Tensor,
    ) -> list[Tensor]:
        """Masks of RoIs.

        Args:
            feats: ``(N, C, S, S)``, S of the first stage.
            maps: From :meth:`semantic_maps`.
            rois: ``(N, 5)``, the image and xyxy in its pixels.
            labels: ``(N,)`` int64, classes of the RoIs.

        Returns:
            Per stage logits ``(N, 1, S, S)`` of the RoIs' classes, float32.
        """
        for conv in self.instance_convs:
            feats = conv(feats)
        stages = len(self.stages)
        preds = []
        for i, stage in enumerate(self.stages):
            logits = self._logits(i, feats, labels)
            preds.append(to_float32(logits))
            with float32_region(feats):
                wide = to_float32(maps[i])
                pooled = roi_align(
                    wide,
                    rois.to(wide.dtype),
                    self.stage_sizes[i],
                    1 / self.semantic_stride,
                    *(0, 'avg', True),
                )
            feats = stage(feats, pooled, logits)
            # The last stage upsamples its logits instead.
            if i < stages - 1:
                feats = F.interpolate(
                    feats,
                    scale_factor=2.0,
                    mode='bilinear',
                    align_corners=False,
                )
        logits = to_float32(self._logits(stages, feats, labels))
        return [*preds, _resize(logits, self.stage_sizes[-1])]

    def _logits(self, stage: int, feats: Tensor, labels: Tensor) -> Tensor:
        """Logits ``(N, 1, S, S)`` of one class per RoI, and of no other."""
        conv = self.stage_instance_logits[stage]
        if conv.out_channels == 1:
            return conv(feats)
        weight = conv.weight[:, :, 0, 0].index_select(0, labels)
        bias = conv.bias.index_select(0, labels)
        logits = torch.bmm(weight[:, None], feats.flatten(2))
        logits = logits + bias[:, None, None]
        return logits.unflatten(2, feats.shape[2:])

    def loss(
        self, preds: Sequence[Tensor], targets: Sequence[Tensor]
    ) -> Tensor:
        """Binary cross-entropy of all stages; 0 without any RoI.

        Args:
            preds: Per stage ``(N, 1, S, S)`` float32 logits.
            targets: Per stage ``(N, S, S)`` of 0 and 1.

        Returns:
            Scalar: the weighted sum of the stages' means, over all pixels
            in the first two stages, near a boundary in the others.
        """
        total, outline = preds[0].new_zeros(()), None
        targets = [target.to(preds[0]) for target in targets]
        for i, (logits, target) in enumerate(zip(preds, targets)):
            losses = F.binary_cross_entropy_with_logits(
                logits[:, 0], target, reduction='none'
            )
            if i <= _START_STAGE:
                loss = losses.sum() / max(losses.numel(), 1)
                mask = logits.detach().sigmoid() >= 0.5
            else:
                width, size = self.boundary_width, logits.shape[-1]
                outline = at_boundary(mask, width) | at_boundary(
                    targets[i - 1][:, None] >= 0.5, width
                )
                near = _resize(outline.to(logits.dtype), size) >= 0.5
                near = near[:, 0].to(losses.dtype)
                loss = (losses * near).sum() / near.sum().clamp(min=1)
                merged = merge_stages(
                    mask, preds[i - 1].detach(), logits.detach()
                )
                mask = merged.sigmoid() >= 0.5
            total = total + self.stage_loss_weights[i] * loss
        return total * self.loss_weight

    def refined(self, preds: Sequence[Tensor]) -> Tensor:
        """Logits ``(N, 1, S, S)`` of the last stage.

        Each stage replaces those of the one before only near its boundaries,
        which is all that it has learned.
        """
        logits = preds[_START_STAGE]
        for finer in preds[_START_STAGE + 1 :]:
            logits = merge_stages(logits.sigmoid() >= 0.5, logits, finer)
        return logits


def at_boundary(masks: Tensor, width: int) -> Tensor:
    """Pixels with enough of the other kind at most ``width`` away.

    ``masks``: ``(N, 1, S, S)`` bool, False beyond its sides. Returns the
    same shape.
    """
    inside = F.avg_pool2d(masks.float(), 2 * width + 1, 1, width)
    return torch.where(masks, 1 - inside, inside) > _LEAST_DIFFERENT


def merge_stages(masks: Tensor, logits: Tensor, finer: Tensor) -> Tensor:
    """Logits of a stage near the boundary of ``masks``, else upsampled ones.

    ``masks``, ``logits``: ``(N, 1, S, S)`` of the stage before ``finer``.
    """
    size = finer.shape[-1]
    beyond = _resize((~at_boundary(masks, 1)).to(logits.dtype), size) >= 0.5
    return torch.where(beyond, _resize(logits, size), finer)


def _resize(x: Tensor, size: int) -> Tensor:
    """Bilinear, corners on corners."""
    return F.interpolate(x, (size, size), mode='bilinear', align_corners=True)


@MODELS.register_module()
class CoMaskIoUHead(MaskIoUHead):
    """Predicts the IoU of a mask with that of its object.

    Arguments are those of ``mmdet.MaskIoUHead``. Its convolutions are
    normalised, and its IoUs are between 0 and 1.

    Source:
        Mask Scoring R-CNN, arXiv 1903.00241; state dict and values of the
        original CO-DETR's ``MaskIoUHead`` with ``score_use_sigmoid``.
    """

    def __init__(
        self,
        *,
        # The convolutions initialise themselves.
        init_cfg: Sequence[dict] = (
            {'type': 'Caffe2Xavier', 'override': {'name': 'fcs'}},
            {
                'type': 'Normal',
                'std': 0.01,
                'override': {'name': 'fc_mask_iou'},
            },
        ),
        **settings: Any,
    ) -> None:
        super().__init__(init_cfg=list(init_cfg), **settings)
        self.convs = nn.ModuleList(
            ConvModule(
                conv.in_channels,
                conv.out_channels,
                3,
                stride=conv.stride,
                padding=1,
                norm_cfg={'type': ChannelNorm},
            )
            for conv in self.convs
        )

    def forward(self, feats: Tensor, logits: Tensor) -> Tensor:
        """IoUs ``(N, K)``.

        ``feats``: ``(N, C, S, S)``; ``logits``: ``(N, 1, 2 S, 2 S)``.
        """
        return to_float32(super().forward(feats, logits[:, 0])).sigmoid()

    def loss(
        self,
        predicted: Tensor,
        logits: Tensor,
        targets: Tensor,
        shares: Tensor,
        threshold: float,
    ) -> Tensor:
        """Mean loss of the RoIs whose mask meets its object.

        Args:
            predicted: ``(N,)`` IoUs of the RoIs' classes.
            logits: ``(N, 1, S, S)`` of the masks.
            targets: ``(N, S, S)`` of 0 and 1.
            shares: ``(N,)`` of the objects' areas that is in their RoI.
            threshold: Least probability of the object.
        """
        masks = (logits[:, 0].detach().sigmoid() > threshold).to(targets)
        shared = (masks * targets).sum((-2, -1))
        whole = targets.sum((-2, -1)) / (shares + 1e-7)
        wanted = shared / (masks.sum((-2, -1)) + whole - shared)
        # NaN where both are empty.
        meets = wanted > 0
        losses = self.loss_iou(
            predicted,
            torch.where(meets, wanted, 0.0),
            reduction_override='none',
        )
        return (losses * meets).sum() / meets.sum().clamp(min=1)
