"""Selection of detections."""

import pytest
import torch

from mmext.models.dense_heads._co_dino_detections import (
    image_detections,
    select_detections,
)

META = {'img_shape': (100, 200), 'scale_factor': (2.0, 0.5)}


def test_selects_the_best_pairs_of_query_and_class() -> None:
    logits = torch.tensor([[0.0, 3.0], [2.0, -1.0], [1.0, 0.5]])
    boxes = torch.arange(12.0).view(3, 4)
    scores, labels, chosen = select_detections(logits, boxes, 3, True)
    torch.testing.assert_close(scores, torch.tensor([3.0, 2.0, 1.0]).sigmoid())
    assert labels.tolist() == [1, 0, 0]
    assert torch.equal(chosen, boxes[[0, 1, 2]])


def test_softmax_never_selects_background() -> None:
    logits = torch.tensor([[0.0, 1.0, 5.0], [4.0, 0.0, 0.0]])
    scores, labels, _ = select_detections(logits, torch.rand(2, 4), 9, False)
    assert labels.tolist() == [0, 1]
    expected = logits.softmax(-1)
    torch.testing.assert_close(scores, expected[[1, 0], [0, 1]])


def test_keeps_all_pairs_if_there_are_fewer_than_the_limit() -> None:
    scores, _, _ = select_detections(
        torch.randn(2, 3), torch.rand(2, 4), 300, True
    )
    assert scores.shape == (6,)
    assert (scores.diff() <= 0).all()


def _detect(boxes, test_cfg, rescale=False, logits=None):
    boxes = torch.tensor(boxes)
    if logits is None:
        logits = torch.linspace(2, 1, len(boxes))[:, None]
    return image_detections(
        logits,
        boxes,
        META,
        {'max_per_img': 10, **test_cfg},
        use_sigmoid=True,
        rescale=rescale,
    )


def test_boxes_are_pixels_clipped_to_the_image() -> None:
    found = _detect([[0.5, 0.5, 0.5, 0.5], [0.0, 0.9, 0.5, 0.4]], {})
    torch.testing.assert_close(
        found.bboxes,
        torch.tensor([[50.0, 25, 150, 75], [0.0, 70, 50, 100]]),
    )


def test_rescale_divides_by_the_scale_factor() -> None:
    found = _detect([[0.5, 0.5, 0.5, 0.5]], {}, rescale=True)
    torch.testing.assert_close(
        found.bboxes, torch.tensor([[25.0, 50, 75, 150]])
    )


def test_score_threshold_is_exclusive() -> None:
    logits = torch.tensor([[0.0], [1.0]])
    boxes = [[0.5, 0.5, 0.1, 0.1]] * 2
    found = _detect(boxes, {'score_thr': 0.5}, logits=logits)
    assert len(found) == 1
    assert float(found.scores) > 0.5


@pytest.mark.parametrize('kind', ['nms', 'soft_nms'])
def test_nms_treats_duplicates(kind: str) -> None:
    boxes = [[0.5, 0.5, 0.4, 0.4]] * 2 + [[0.2, 0.2, 0.1, 0.1]]
    plain = _detect(boxes, {})
    found = _detect(boxes, {'nms': {'type': kind, 'iou_threshold': 0.8}})
    assert len(plain) == 3
    if kind == 'nms':
        assert len(found) == 2
    else:
        # A duplicate loses its score, so the third box comes before it.
        torch.testing.assert_close(found.bboxes[1], plain.bboxes[2])
    assert (found.scores.diff() <= 0).all()


def test_nms_of_nothing() -> None:
    found = _detect(
        [[0.5, 0.5, 0.1, 0.1]],
        {'score_thr': 0.999, 'nms': {'type': 'nms', 'iou_threshold': 0.5}},
    )
    assert len(found) == 0
    assert found.bboxes.shape == (0, 4)
