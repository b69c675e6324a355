"""Losses of decoder queries that come with their target.

Shape letters: B images, P queries, K classes, D decoder layers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from mmdet.models.losses import QualityFocalLoss
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy, bbox_overlaps
from mmdet.utils import reduce_mean
from torch import Tensor, nn

from .positives import CoQueries

__all__ = [
    'LossCall',
    'QueryLogits',
    'co_head_losses',
    'named_co_losses',
    'positives_per_rank',
    'recorded_calls',
    'replayed_losses',
]


def positives_per_rank(num_positives: int, like: Tensor) -> float:
    """Mean number of positives over the ranks, at least 1."""
    mean = reduce_mean(like.new_tensor([float(num_positives)]))
    return max(mean.item(), 1.0)


def co_head_losses(
    head: torch.nn.Module,
    scores: Tensor,
    boxes: Tensor,
    queries: CoQueries,
    img_shapes: Sequence[tuple[int, int]],
) -> list[dict]:
    """Losses of one auxiliary head's queries in every decoder layer.

    ``scores``: ``(D, B, P, K)`` float32 logits; ``boxes``: ``(D, B, P, 4)``
    float32, cx cy w h, normalised.
    """
    box_avg = positives_per_rank(queries.num_positives, boxes)
    cls_avg = (
        box_avg
        if head.sync_cls_avg_factor
        else max(float(queries.num_positives), 1.0)
    )
    scale = (
        torch.stack(
            [
                boxes.new_tensor([width, height, width, height])
                for height, width in img_shapes
            ]
        )[:, None]
        .expand_as(queries.boxes)
        .reshape(-1, 4)
    )
    labels = queries.labels.reshape(-1)
    label_weights = queries.label_weights.reshape(-1)
    box_weights = queries.box_weights.reshape(-1, 4)
    targets = queries.targets.reshape(-1, 4)
    target_xyxy = bbox_cxcywh_to_xyxy(targets)
    layers = []
    for score, box in zip(scores.flatten(1, 2), boxes.flatten(1, 2)):
        box_xyxy = bbox_cxcywh_to_xyxy(box)
        target = labels
        if isinstance(head.loss_cls, QualityFocalLoss):
            target = (
                labels,
                _iou_targets(
                    box_xyxy.detach(), target_xyxy, labels, head.num_classes
                ),
            )
        layers.append(
            {
                'loss_cls': head.loss_cls(
                    score, target, label_weights, avg_factor=cls_avg
                ),
                'loss_bbox': head.loss_bbox(
                    box, targets, box_weights, avg_factor=box_avg
                ),
                'loss_iou': head.loss_iou(
                    box_xyxy * scale,
                    target_xyxy * scale,
                    box_weights,
                    avg_factor=box_avg,
                ),
            }
        )
    return layers


def named_co_losses(
    head: torch.nn.Module,
    scores: Tensor,
    boxes: Tensor,
    co_queries: Sequence[CoQueries],
    img_shapes: Sequence[tuple[int, int]],
) -> dict[str, Tensor]:
    """Losses of all auxiliary heads' queries, named as the port does.

    ``scores``: ``(D, B, P, K)`` float32 logits, ``P`` of all heads together;
    ``boxes``: ``(D, B, P, 4)`` float32, cx cy w h, normalised.
    """
    losses = {}
    sizes = [queries.boxes.shape[1] for queries in co_queries]
    for i, (queries, score, box) in enumerate(
        zip(co_queries, scores.split(sizes, 2), boxes.split(sizes, 2))
    ):
        layers = co_head_losses(head, score, box, queries, img_shapes)
        for depth, layer in enumerate(layers):
            last = depth == len(layers) - 1
            prefix = '' if last else f'd{depth}.'
            losses.update(
                {
                    f'{prefix}{name}_aux{i}': value
                    for name, value in layer.items()
                }
            )
    return losses


def _iou_targets(
    boxes: Tensor, targets: Tensor, labels: Tensor, num_classes: int
) -> Tensor:
    """IoU of the positives with their targets, 0 for the others."""
    positive = (labels >= 0) & (labels < num_classes)
    iou = bbox_overlaps(boxes, targets, is_aligned=True)
    return torch.where(positive, iou, torch.zeros_like(iou))


NAME = 'loss_class_embed'


class LossCall(NamedTuple):
    """One call of a classification loss.

    Attributes:
        num_queries: How many queries it classified.
        args: Positional arguments but the logits: targets, weights.
        kwargs: Further arguments, such as ``avg_factor``.
    """

    num_queries: int
    args: tuple
    kwargs: dict


class QueryLogits(NamedTuple):
    """Logits of one step, by what the queries are for.

    Attributes:
        matching: ``(D, B, Q, K)``.
        proposals: ``(B, Q, K)``.
        denoising: ``(D, B, P, K)``; ``P`` is 0 if there is no box.
        co_heads: Per auxiliary head ``(D, B, its queries, K)``.
    """

    matching: Tensor
    proposals: Tensor
    denoising: Tensor
    co_heads: Sequence[Tensor]


@contextmanager
def recorded_calls(loss: nn.Module) -> Iterator[list[LossCall]]:
    """Note what a loss is called with.

    The targets of a query (its match, its weight, the IoU that is asked for,
    what the sum is divided by) are made inside the host's head. This is where
    all of them can be seen, once they are made, without matching again.
    """
    calls: list[LossCall] = []

    def note(module: nn.Module, args: tuple, kwargs: dict, _: Any) -> None:
        calls.append(LossCall(len(args[0]), args[1:], kwargs))

    handle = loss.register_forward_hook(note, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def _in_order(logits: QueryLogits) -> Iterator[tuple[str, Tensor]]:
    """Names and logits, in the order in which the head calls its loss."""

    def per_layer(name: str, layers: Tensor) -> Iterator[tuple[str, Tensor]]:
        for i, layer in enumerate(layers):
            last = i == len(layers) - 1
            yield (name if last else f'd{i}.{name}'), layer

    yield from per_layer(NAME, logits.matching)
    yield f'enc_{NAME}', logits.proposals
    yield from per_layer(f'dn_{NAME}', logits.denoising)
    for i, layers in enumerate(logits.co_heads):
        yield from per_layer(f'{NAME}_aux{i}', layers)


def replayed_losses(
    loss: nn.Module,
    calls: Sequence[LossCall],
    logits: QueryLogits,
    weight: float,
) -> dict[str, Tensor]:
    """Losses of other logits of the same queries, on the same targets.

    ``logits``: The other logits, float32.
    """
    expected = list(_in_order(logits))
    pending = list(calls)
    losses = {}
    for name, scores in expected:
        flat = scores.flatten(0, -2)
        if len(flat) == 0:
            losses[name] = flat.sum() * weight
            continue
        call = pending.pop(0) if pending else None
        if call is None or call.num_queries != len(flat):
            found = 'no call' if call is None else f'{call.num_queries}'
            raise RuntimeError(
                f'loss_cls must have been called with {len(flat)} queries for '
                f'{name}, got {found}; this mmdet computes its losses in '
                "another order, use mode='classifier'"
            )
        losses[name] = loss(flat, *call.args, **call.kwargs) * weight
    if pending:
        raise RuntimeError(
            f'loss_cls must have been called {len(calls) - len(pending)} '
            f'times, got {len(calls)}; this mmdet has further losses, use '
            "mode='classifier'"
        )
    return losses
