"""Region proposals for the two-stage auxiliary heads, and the RPN's losses.

Shape letters: B images, N anchors, L levels, R proposals of one image, S
samples of one image.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from mmcv.ops import batched_nms
from mmdet.models.dense_heads import RPNHead
from mmdet.models.losses import CrossEntropyLoss
from mmdet.models.task_modules import DeltaXYWHBBoxCoder
from mmdet.models.utils import unpack_gt_instances
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData
from torch import Tensor, nn

from ...utils.tensors import (
    float32_region,
    forgotten,
    to_float32,
)
from .anchors import (
    AnchorGrid,
    Samples,
    anchor_grid,
    assign_max_iou,
    assigns_plainly,
    decode_boxes,
    draw_samples,
    encode_boxes,
)
from .matching import image_scales


class RegionProposals(NamedTuple):
    """Proposals of a batch, padded to the same number.

    Attributes:
        boxes: ``(B, R, 4)`` float32, xyxy in pixels.
        real: ``(B, R)`` bool, False where padded.
    """

    boxes: Tensor
    real: Tensor

    def instances(self) -> list[InstanceData]:
        """Per image the ``bboxes`` that are real, as mmdet has them."""
        return [
            InstanceData(bboxes=boxes[real])
            for boxes, real in zip(self.boxes, self.real)
        ]


def given_proposals(samples: Sequence[DetDataSample]) -> RegionProposals:
    """Take the proposals out of the samples.

    ``samples``: Samples with ``proposals``, whose ``bboxes`` are ``(R, 4)``
    xyxy in pixels.
    """
    for i, sample in enumerate(samples):
        if 'proposals' not in sample:
            raise ValueError(
                'data_samples must carry proposals for a roi_head without '
                f'rpn_head, got none in sample {i}; give model.rpn_head or '
                'load proposals in the pipeline'
            )
    return _padded([sample.proposals for sample in samples])


def _padded(proposals: Sequence[InstanceData]) -> RegionProposals:
    """Proposals of one length."""
    boxes = [to_float32(proposal.bboxes) for proposal in proposals]
    real = [torch.ones_like(box[:, 0], dtype=torch.bool) for box in boxes]
    pad = torch.nn.utils.rnn.pad_sequence
    return RegionProposals(pad(boxes, True), pad(real, True))


def propose_and_learn(
    head: nn.Module,
    feats: Sequence[Tensor],
    samples: Sequence[DetDataSample],
    cfg: Mapping,
) -> tuple[RegionProposals, dict]:
    """Proposals, and the RPN's losses.

    Args:
        head: The RPN. With the parts that CO-DETR has, the host waits for
            the device only in the NMS; with others it is mmdet's code that
            assigns, samples and proposes.
        feats: Maps ``(B, C, H, W)``, one per anchor level.
        samples: Samples with ``gt_instances``, of which it only learns that
            they are objects.
        cfg: ``nms_pre``, ``nms``, ``max_per_img`` and ``min_bbox_size``.

    Returns:
        The proposals, best first, without gradient; and ``loss_rpn_cls`` and
        ``loss_rpn_bbox``, each a list with one scalar per level, divided by
        the number of samples of the batch.
    """
    if not _is_plain(head):
        outs = to_float32(head(feats))
        with float32_region(feats[0]):
            return _as_mmdet(head, outs, samples, cfg)
    # Of all anchors, no more than their boxes; few are learned from.
    with forgotten():
        scores, deltas = to_float32(head(feats))
    with float32_region(feats[0]):
        device = scores[0].device
        grid = anchor_grid(
            head,
            [tuple(score.shape[-2:]) for score in scores],
            [sample.metainfo for sample in samples],
            device,
        )
        scores = torch.cat(
            [score.permute(0, 2, 3, 1).flatten(1) for score in scores], 1
        )
        deltas = torch.cat(
            [
                delta.permute(0, 2, 3, 1).reshape(len(samples), -1, 4)
                for delta in deltas
            ],
            1,
        )
        proposals = _propose(
            head, grid, scores, deltas, image_scales(samples, device), cfg
        )
        drawn, targets = _draw(head, grid, samples)
    scores, deltas = to_float32(_predict(head, feats, drawn.index))
    with float32_region(feats[0]):
        return proposals, _losses(head, grid, scores, deltas, drawn, targets)


def _is_plain(head: nn.Module) -> bool:
    """Whether the functions here do what the head would do."""
    return (
        type(head) is RPNHead
        and head.cls_out_channels == 1
        and type(head.loss_cls) is CrossEntropyLoss
        and type(head.bbox_coder) is DeltaXYWHBBoxCoder
        and not head.reg_decoded_bbox
        and all(
            type(layer) is nn.Conv2d
            for layer in (head.rpn_conv, head.rpn_cls, head.rpn_reg)
        )
        and assigns_plainly(head, head.assigner, head.sampler)
    )


def _as_mmdet(
    head: nn.Module,
    outs: tuple,
    samples: Sequence[DetDataSample],
    cfg: Mapping,
) -> tuple[RegionProposals, dict]:
    """The same by the head's own methods."""
    gts, ignored, metas = unpack_gt_instances(samples)
    gts = [
        InstanceData(bboxes=gt.bboxes, labels=torch.zeros_like(gt.labels))
        for gt in gts
    ]
    losses = head.loss_by_feat(*outs, gts, metas, ignored)
    proposals = head.predict_by_feat(*outs, batch_img_metas=metas, cfg=cfg)
    return _padded(proposals), losses


def _draw(
    head: RPNHead, grid: AnchorGrid, samples: Sequence[DetDataSample]
) -> tuple[Samples, Tensor]:
    """Anchors to learn from, ``(B, S)``, and boxes ``(B, S, 4)``."""
    drawn, targets = [], []
    for i, sample in enumerate(samples):
        boxes = to_float32(sample.gt_instances.bboxes)
        assigned = assign_max_iou(
            head.assigner, grid.anchors, grid.image_mask(i), boxes
        )
        drawn.append(draw_samples(assigned, head.sampler))
        # A row of its own for an image without boxes.
        boxes = torch.cat((boxes, boxes.new_zeros((1, 4))))
        targets.append(boxes[assigned[drawn[-1].index].clamp(min=0)])
    return Samples(*map(torch.stack, zip(*drawn))), torch.stack(targets)


def _predict(
    head: RPNHead, feats: Sequence[Tensor], index: Tensor
) -> tuple[Tensor, Tensor]:
    """Scores ``(B, S)`` and deltas ``(B, S, 4)`` of some anchors alone.

    As the convolutions of the head give them. ``index``: ``(B, S)``, which
    anchors.
    """
    anchors = head.num_base_priors
    cell, anchor = index // anchors, index % anchors
    height = width = first = torch.zeros_like(cell)
    start = 0
    for feat in feats:
        rows, columns = feat.shape[-2:]
        height, width, first = (
            torch.where(cell >= start, new, old)
            for new, old in ((rows, height), (columns, width), (start, first))
        )
        start += rows * columns
    height, width, first = (
        item[..., None, None] for item in (height, width, first)
    )
    # The nine pixels that the kernel sees, 0 beyond the edges.
    place = cell[..., None, None] - first
    steps = torch.arange(-1, 2, device=index.device)
    y, x = place // width + steps[:, None], place % width + steps
    there = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    pixels = torch.where(there, first + y * width + x, 0).flatten(1)
    tokens = torch.cat([feat.flatten(2) for feat in feats], 2)
    image = torch.arange(len(tokens), device=index.device)[:, None]
    # Not gather(), which would keep the tokens.
    windows = tokens.transpose(1, 2)[image, pixels]
    windows = windows * there.flatten(1)[..., None]
    windows = windows.unflatten(1, (index.shape[1], -1)).transpose(2, 3)
    hidden = windows.flatten(2)
    hidden = _linear(head.rpn_conv, hidden).relu()
    scores = _linear(head.rpn_cls, hidden)
    deltas = _linear(head.rpn_reg, hidden).unflatten(2, (anchors, 4))
    at = anchor[..., None]
    return (
        scores.gather(2, at)[..., 0],
        deltas.gather(2, at[..., None].expand(-1, -1, -1, 4))[:, :, 0],
    )


def _linear(layer: nn.Conv2d, windows: Tensor) -> Tensor:
    """A convolution at places whose windows ``(..., C * 3 * 3)`` are given."""
    return F.linear(windows, layer.weight.flatten(1), layer.bias)


def _losses(
    head: RPNHead,
    grid: AnchorGrid,
    scores: Tensor,
    deltas: Tensor,
    drawn: Samples,
    targets: Tensor,
) -> dict[str, list[Tensor]]:
    """Losses of the anchors that are drawn; scores ``(B, S)``."""
    index, positive, real = drawn
    anchors = grid.anchors[index]
    wanted = encode_boxes(head.bbox_coder, anchors, targets)
    wanted = torch.where(positive[..., None], wanted, 0.0)
    weights = real.float()
    if head.train_cfg['pos_weight'] > 0:
        weights = torch.where(
            positive, float(head.train_cfg['pos_weight']), weights
        )
    classes = head.loss_cls(
        scores.reshape(-1, 1),
        positive.float().view(-1, 1),
        weights.view(-1, 1),
        reduction_override='none',
    ).view_as(weights)
    distance = (
        head.loss_bbox(
            deltas.flatten(0, 1),
            wanted.flatten(0, 1),
            reduction_override='none',
        )
        .sum(-1)
        .view_as(weights)
        * positive
    )
    # As mmdet counts: at least one of either kind in each image.
    kinds = torch.stack((positive, real & ~positive)).sum(-1)
    divisor = kinds.clamp(min=1).sum()
    starts = [sum(grid.counts[:i]) for i in range(len(grid.counts) + 1)]
    levels = [
        (index >= start) & (index < stop) for start, stop in pairwise(starts)
    ]
    return {
        name: [(item * level).sum() / divisor for level in levels]
        for name, item in (
            ('loss_rpn_cls', classes),
            ('loss_rpn_bbox', distance),
        )
    }


@torch.no_grad()
def _propose(
    head: RPNHead,
    grid: AnchorGrid,
    scores: Tensor,
    deltas: Tensor,
    scales: Tensor,
    cfg: Mapping,
) -> RegionProposals:
    """The best boxes of each level after one NMS for all images."""
    batch, levels = len(scores), len(grid.counts)
    best = []
    for level in scores.sigmoid().split(grid.counts, 1):
        count = cfg.get('nms_pre', -1)
        count = level.shape[1] if count <= 0 else min(count, level.shape[1])
        best.append(level.topk(count, 1))
    starts = [sum(grid.counts[:i]) for i in range(levels)]
    values = torch.cat([item.values for item in best], 1)
    index = torch.cat(
        [item.indices + first for item, first in zip(best, starts)], 1
    )
    boxes = decode_boxes(
        head.bbox_coder,
        grid.anchors[index],
        deltas.gather(1, index[..., None].expand(-1, -1, 4)),
        scales[:, None],
    )
    level = torch.cat(
        [torch.full_like(item.indices, i) for i, item in enumerate(best)],
        1,
    )
    image = torch.arange(batch, device=index.device)[:, None]
    group = image * levels + level
    smallest = cfg.get('min_bbox_size', -1)
    if smallest >= 0:
        extent = boxes[..., 2:] - boxes[..., :2]
        # What is too small is kept apart, and left out after the NMS.
        usable = (extent > smallest).all(-1)
        group = torch.where(usable, group, batch * levels)
    nms = dict(cfg['nms'])
    if boxes.is_cuda:
        # Beyond this number mmcv would wait for each group.
        nms['split_thr'] = values.numel() + 1
    kept = batched_nms(
        boxes.flatten(0, 1), values.flatten(), group.flatten(), nms
    )[1]
    owner = group.flatten()[kept] // levels
    rank = torch.arange(len(kept), device=index.device)
    order = torch.where(owner == image, rank, len(kept))
    count = min(cfg['max_per_img'], len(kept))
    order, result = order.topk(count, 1, largest=False)
    real = order < len(kept)
    chosen = boxes.flatten(0, 1)[kept[result]]
    return RegionProposals(torch.where(real[..., None], chosen, 0.0), real)
