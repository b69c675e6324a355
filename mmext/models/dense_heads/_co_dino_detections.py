"""Detections of one image from query logits and boxes.

Shape letters: Q queries, K classes, N detections.
"""

from collections.abc import Mapping

from mmcv.ops import batched_nms
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy
from mmengine.structures import InstanceData
from torch import Tensor

__all__ = ['image_detections', 'select_detections']


def select_detections(
    cls_score: Tensor, boxes: Tensor, max_per_img: int, use_sigmoid: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The best (query, class) pairs of one image.

    Args:
        cls_score: ``(Q, K)`` logits, ``(Q, K + 1)`` without sigmoid.
        boxes: ``(Q, 4)``.
        max_per_img: Upper limit; all pairs are kept if there are fewer.
        use_sigmoid: Sigmoid over classes, or softmax with background last.

    Returns:
        Scores ``(N,)`` in descending order, labels ``(N,)`` int64 and boxes
        ``(N, 4)``.
    """
    if use_sigmoid:
        flat = cls_score.sigmoid().flatten()
        scores, index = flat.topk(min(max_per_img, flat.numel()))
        num_classes = cls_score.shape[-1]
        return scores, index % num_classes, boxes[index // num_classes]
    scores, labels = cls_score.softmax(-1)[..., :-1].max(-1)
    scores, index = scores.topk(min(max_per_img, scores.numel()))
    return scores, labels[index], boxes[index]


def image_detections(
    cls_score: Tensor,
    boxes: Tensor,
    img_meta: Mapping,
    test_cfg: Mapping,
    *,
    use_sigmoid: bool,
    rescale: bool,
) -> InstanceData:
    """Detections of one image.

    Args:
        cls_score: ``(Q, K)`` float32 logits, ``(Q, K + 1)`` without sigmoid.
        boxes: ``(Q, 4)`` float32, cx cy w h in [0, 1].
        img_meta: ``img_shape``, height and width in pixels, which the boxes
            are relative to; ``scale_factor``, width and height, to rescale.
        test_cfg: ``max_per_img``; ``score_thr``, below or at which a
            detection is dropped, 0 to keep all; ``nms``, the config of
            ``mmcv.ops.batched_nms``, or None. Without ``score_thr`` and
            ``nms`` no shape depends on the data, as an export needs it.
        use_sigmoid: Sigmoid over classes, or softmax with background last.
        rescale: Give boxes in pixels of the original image.

    Returns:
        ``bboxes`` ``(N, 4)`` xyxy in pixels, clipped to the image;
        ``scores`` ``(N,)`` descending; ``labels`` ``(N,)`` int64.
    """
    max_per_img = test_cfg['max_per_img']
    scores, labels, boxes = select_detections(
        cls_score, boxes, max_per_img, use_sigmoid
    )
    height, width = img_meta['img_shape'][:2]
    size = boxes.new_tensor([width, height, width, height])
    boxes = (bbox_cxcywh_to_xyxy(boxes) * size).clamp(min=0).minimum(size)
    if rescale:
        boxes = boxes / boxes.new_tensor(img_meta['scale_factor']).repeat(1, 2)
    results = InstanceData(bboxes=boxes, scores=scores, labels=labels)
    score_thr = test_cfg.get('score_thr', 0)
    if score_thr > 0:
        results = results[scores > score_thr]
    nms = test_cfg.get('nms')
    if nms is None or len(results) == 0:
        return results
    kept, index = batched_nms(
        results.bboxes, results.scores, results.labels, nms
    )
    results = results[index]
    results.scores = kept[:, -1]
    return results[:max_per_img]
