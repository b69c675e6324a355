"""Ground truth of a batch, and which query is matched with which box.

Shape letters: D decoder layers, B images, Q queries, K classes, M boxes of
the image that has most.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from mmdet.models.task_modules import HungarianAssigner
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy, bbox_xyxy_to_cxcywh
from mmengine.structures import InstanceData
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ...utils.tensors import to_device
from .losses import GroupTargets


@dataclass(frozen=True)
class GroundTruth:
    """Boxes of a batch, padded to the image with the most boxes.

    Attributes:
        boxes: ``(B, M, 4)`` float32, cx cy w h in [0, 1], 0 where padded.
        labels: ``(B, M)`` int64, ``num_classes`` where padded.
        scales: ``(B, 4)`` float32, width, height, width and height of each
            image in pixels.
    """

    boxes: Tensor
    labels: Tensor
    scales: Tensor


def image_scales(
    batch_data_samples: Sequence[DetDataSample], device: torch.device
) -> Tensor:
    """Width, height, width and height of each image, ``(B, 4)`` float32."""
    shapes = [sample.img_shape[:2] for sample in batch_data_samples]
    return to_device(
        np.array([[w, h, w, h] for h, w in shapes], np.float32), device
    )


def read_ground_truth(
    batch_data_samples: Sequence[DetDataSample], num_classes: int
) -> GroundTruth:
    """Collect the boxes of a batch.

    Args:
        batch_data_samples: Samples with ``img_shape`` and ``gt_instances``,
            boxes xyxy in pixels.
        num_classes: ``K``.
    """
    instances = [sample.gt_instances for sample in batch_data_samples]
    scales = image_scales(batch_data_samples, instances[0].bboxes.device)
    counts = [len(instance.bboxes) for instance in instances]
    boxes = scales.new_zeros((len(counts), max(counts), 4))
    labels = instances[0].labels.new_full(boxes.shape[:2], num_classes)
    for i, (item, count) in enumerate(zip(instances, counts)):
        boxes[i, :count] = bbox_xyxy_to_cxcywh(item.bboxes / scales[i])
        labels[i, :count] = item.labels
    return GroundTruth(boxes, labels, scales)


def match_queries(
    assigner: object,
    parts: Sequence[tuple[Tensor, Tensor, Sequence[DetDataSample]]],
    scales: Tensor,
    numbers: Tensor | None = None,
) -> tuple[list[Tensor], list[int]]:
    """Match the queries of every part, layer and image.

    The costs of all of them travel to the host together, where SciPy solves
    one assignment for each.

    Args:
        assigner: ``train_cfg.assigner``. Of a
            ``mmdet.HungarianAssigner`` the costs are computed for all layers
            at once; any other assigns one layer of one image at a time.
        parts: Per part scores, ``(D, B, Q, K)`` float32 logits; boxes, ``(D,
            B, Q, 4)`` float32, cx cy w h, normalised; and samples with
            ``gt_instances``. ``D`` and ``Q`` may differ.
        scales: ``(B, 4)``, see :class:`GroundTruth`.
        numbers: Whole numbers below 2**24 that the host needs as well, and
            that need no way of their own.

    Returns:
        Two items: per part ``(D, B, Q)`` int64, the index of the matched box
        in its image, -1 for an unmatched query; and the ``numbers``.

    Raises:
        ValueError: If a cost is NaN, as SciPy says.
    """
    one_by_one = type(assigner) is not HungarianAssigner
    matched, costs, places = [], [], []
    for scores, boxes, batch_data_samples in parts:
        pixels = bbox_cxcywh_to_xyxy(boxes.detach()) * scales[:, None]
        scores = scores.detach()
        if one_by_one:
            matched.append(
                _match_one_by_one(assigner, scores, pixels, batch_data_samples)
            )
            continue
        depth, batch, count = scores.shape[:3]
        matched.append(np.full((depth, batch, count), -1, np.int64))
        for i, sample in enumerate(batch_data_samples):
            size = len(sample.gt_instances)
            if not size:
                continue
            predictions = InstanceData(
                scores=scores[:, i].flatten(0, 1),
                bboxes=pixels[:, i].flatten(0, 1),
            )
            costs.append(
                sum(
                    cost(predictions, sample.gt_instances, sample.metainfo)
                    for cost in assigner.match_costs
                ).flatten()
            )
            places.append((matched[-1][:, i], (depth, count, size)))
    if one_by_one:
        return matched, [] if numbers is None else numbers.tolist()
    more = 0 if numbers is None else len(numbers)
    if more:
        costs.append(numbers.to(scales.dtype))
    arrived: list[int] = []
    if costs:
        # Nowhere else in a step does the host wait for the decoder.
        host = torch.cat(costs).cpu().numpy()
        ends = np.cumsum([len(cost) for cost in costs])
        for part, (rows_of, shape) in zip(np.split(host, ends[:-1]), places):
            for layer, layer_costs in enumerate(part.reshape(shape)):
                rows, columns = linear_sum_assignment(layer_costs)
                rows_of[layer, rows] = columns
        arrived = host[len(host) - more :].astype(int).tolist()
    return [to_device(part, scales.device) for part in matched], arrived


def _match_one_by_one(
    assigner: object,
    scores: Tensor,
    pixels: Tensor,
    batch_data_samples: Sequence[DetDataSample],
) -> Tensor:
    """Match as any assigner of mmdet does."""
    return torch.stack(
        [
            torch.stack(
                [
                    assigner.assign(
                        pred_instances=InstanceData(
                            scores=layer_scores[i], bboxes=layer_pixels[i]
                        ),
                        gt_instances=sample.gt_instances,
                        img_meta=sample.metainfo,
                    ).gt_inds
                    - 1
                    for i, sample in enumerate(batch_data_samples)
                ]
            )
            for layer_scores, layer_pixels in zip(scores, pixels)
        ]
    )


def matched_targets(
    name: str, matched: Tensor, truth: GroundTruth, num_classes: int
) -> GroupTargets:
    """Targets of matched queries.

    Args:
        name: Pattern of the losses' names.
        matched: ``(D, B, Q)`` int64, from :func:`match_queries`.
        truth: The boxes that they were matched with.
        num_classes: ``K``.
    """
    batch = matched.shape[1]
    positive = matched >= 0
    # One row more, for the queries without a box.
    labels = torch.cat(
        (truth.labels, truth.labels.new_full((batch, 1), num_classes)), 1
    )
    boxes = torch.cat((truth.boxes, truth.boxes.new_zeros((batch, 1, 4))), 1)
    index = torch.where(positive, matched, truth.labels.shape[1])
    image = torch.arange(batch, device=index.device)[:, None]
    return GroupTargets(
        name=name,
        labels=labels[image, index],
        label_weights=torch.ones_like(positive, dtype=torch.float32),
        boxes=boxes[image, index],
        box_weights=positive.float(),
        negatives=(~positive).float(),
    )
