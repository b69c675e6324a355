"""Contrastive denoising: noisy boxes that the decoder has to put right.

Shape letters: B images, M boxes of the image that has most, N groups of
denoising queries, T queries of all groups, C channels, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mmdet.models.layers import CdnQueryGenerator
from mmdet.models.layers.transformer import inverse_sigmoid
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy, bbox_xyxy_to_cxcywh
from torch import Tensor

from .decoder import REFERENCE_EPS
from .losses import GroupTargets
from .matching import GroundTruth


@dataclass(frozen=True)
class DenoisingQueries:
    """Denoising queries and what they should predict.

    Attributes:
        contents: ``(B, 2 * N * M, C)``.
        references: ``(B, 2 * N * M, 4)`` float32, cx cy w h in [0, 1].
        targets: Of these queries, the same for all layers.
        num_groups: ``N``.
    """

    contents: Tensor
    references: Tensor
    targets: GroupTargets
    num_groups: int


class DenoisingGenerator(CdnQueryGenerator):
    """Makes the denoising queries of DINO.

    Each of ``N`` groups has a positive and a negative copy of each box.
    Corners are moved by up to half of ``box_noise_scale`` times the size of
    the box, those of a negative by once to twice as much. Half of
    ``label_noise_scale`` is the share of labels that are drawn at random. All
    of it is computed for the padded boxes of the batch, so that no shape
    depends on what was drawn.

    Args:
        *args: As of ``mmdet``'s ``CdnQueryGenerator``.
        max_boxes: If an image has more boxes, this many are drawn at random
            in each step: self-attention among more would take minutes.
        **kwargs: As of ``mmdet``'s ``CdnQueryGenerator``.

    Raises:
        ValueError: If ``max_boxes`` is less than 1.

    Source:
        DINO, arXiv 2203.03605. Arguments, state dict and distribution of
        ``mmdet``'s ``CdnQueryGenerator``, which draws its random numbers in
        another order.
    """

    def __init__(
        self, *args: Any, max_boxes: int = 500, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        if max_boxes < 1:
            raise ValueError(
                f'max_boxes must be at least 1, got {max_boxes}; it is the '
                "query head's dn_cfg.max_boxes"
            )
        self.max_boxes = max_boxes

    def __call__(self, truth: GroundTruth) -> DenoisingQueries:
        """Draw the queries for the boxes of a batch."""
        truth = self._without_many(truth)
        batch, most = truth.labels.shape
        groups = self.get_num_groups(most)
        # Image, group, positive or negative, box.
        shape = (batch, groups, 2, most)
        real = (truth.labels < self.num_classes)[:, None, None].expand(shape)
        labels = truth.labels[:, None, None].expand(shape)
        boxes = truth.boxes[:, None, None].expand(*shape, 4)
        kind = torch.arange(2, device=real.device)[:, None]
        positive = real & (kind == 0)
        flat = (batch, groups * 2 * most)
        # Labels, some of which are drawn anew.
        chosen = torch.rand_like(labels, dtype=torch.float32)
        drawn = torch.randint_like(labels, self.num_classes)
        noisy = torch.where(chosen < self.label_noise_scale / 2, drawn, labels)
        embedded = self.label_embedding(noisy.masked_fill(~real, 0))
        contents = embedded * real[..., None]
        return DenoisingQueries(
            contents=contents.view(*flat, self.embed_dims),
            references=self._references(boxes, real).reshape(*flat, 4),
            targets=GroupTargets(
                name='dn_{}',
                labels=torch.where(positive, labels, self.num_classes).view(
                    1, *flat
                ),
                label_weights=boxes.new_ones((1, *flat)),
                boxes=torch.where(positive[..., None], boxes, 0.0).view(
                    1, *flat, 4
                ),
                box_weights=positive.float().view(1, *flat),
                negatives=(real & ~positive).float().view(1, *flat),
            ),
            num_groups=groups,
        )

    def _without_many(self, truth: GroundTruth) -> GroundTruth:
        """The ground truth, or of many boxes those that are drawn."""
        batch, most = truth.labels.shape
        if most <= self.max_boxes:
            return truth
        device = truth.labels.device
        rank = torch.stack(
            [torch.randperm(most, device=device) for _ in range(batch)]
        )
        rank = torch.where(truth.labels < self.num_classes, rank, most)
        index = rank.topk(self.max_boxes, largest=False).indices
        return GroundTruth(
            boxes=truth.boxes.gather(1, index[..., None].expand(-1, -1, 4)),
            labels=truth.labels.gather(1, index),
            scales=truth.scales,
        )

    def _references(self, boxes: Tensor, real: Tensor) -> Tensor:
        """Boxes whose corners are moved, in [0, 1]."""
        size = torch.cat((boxes[..., 2:], boxes[..., 2:]), -1)
        sign = torch.randint_like(boxes, 2) * 2 - 1
        # A positive by [0, 1) of half its size, a negative by [1, 2).
        kind = torch.arange(2, device=boxes.device)[:, None, None]
        part = torch.rand_like(boxes) + kind
        corners = bbox_cxcywh_to_xyxy(boxes) + (
            part * sign * size * (self.box_noise_scale / 2)
        )
        moved = bbox_xyxy_to_cxcywh(corners.clamp(0, 1))
        # Through the clamped logit and back, as the port does; 0 where padded.
        logits = inverse_sigmoid(moved, eps=REFERENCE_EPS)
        return logits.masked_fill(~real[..., None], 0.0).sigmoid()


def group_attention_mask(
    num_denoising: int,
    num_groups: int,
    num_matching: int,
    co_sizes: Sequence[int],
    device: torch.device,
) -> Tensor | None:
    """Self-attention mask of ``[denoising | matching | co-head 1 | ...]``.

    The queries of a group see each other; denoising queries also see the
    matching ones. Returns ``(T, T)`` bool, True where attention is forbidden;
    None if there is nothing to forbid.
    """
    if not num_denoising and not co_sizes:
        return None
    sizes = [num_denoising // max(num_groups, 1)] * num_groups
    sizes += [num_matching, *co_sizes]
    group = torch.cat(
        [torch.full((size,), i, device=device) for i, size in enumerate(sizes)]
    )
    seen = (group[:, None] < num_groups) & (group == num_groups)
    return (group[:, None] != group) & ~seen
