"""Greedy NMS against recorded and compiled runs, and a plain loop."""

import math

import pytest
import torch
from mmcv.ops import batched_nms, nms, nms_match, soft_nms
from reference import slow_ops
from torch import Tensor

pytestmark = pytest.mark.usefixtures('backend')


def boxes_in_clusters(
    count: int, clusters: int, *, classes: int = 1
) -> tuple[Tensor, Tensor]:
    """Boxes and distinct scores; each class shifted as batched_nms does."""
    centre = torch.rand(clusters, 2) * 1000
    size = torch.rand(clusters, 2) * 150 + 10
    pick = torch.randint(clusters, (count,))
    corners = torch.cat([centre - size / 2, centre + size / 2], 1)[pick]
    corners += torch.randn(count, 4) * 8
    low = corners[:, :2].minimum(corners[:, 2:])
    high = corners[:, :2].maximum(corners[:, 2:])
    boxes = torch.cat([low, high], 1)
    boxes += torch.randint(classes, (count, 1)) * (boxes.max() + 1)
    return boxes, torch.randperm(count) / count


@pytest.mark.parametrize(
    ('function', 'name'),
    [
        (nms, 'nms_offset0'),
        (nms, 'nms_offset1'),
        (nms, 'nms_score_thr_max'),
        (nms, 'nms_empty'),
        (batched_nms, 'batched_nms'),
    ],
)
def test_matches_recorded_runs(function, name, oracle, device):
    call = oracle(name)
    inputs = {
        key: value.to(device) if isinstance(value, Tensor) else value
        for key, value in call['inputs'].items()
    }
    dets, index = function(**inputs)
    assert torch.equal(dets.cpu(), call['outputs'][0])
    assert torch.equal(index.cpu(), call['outputs'][1])


@pytest.mark.parametrize('threshold', [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize('offset', [0, 1])
@pytest.mark.parametrize('classes', [1, 4])
def test_matches_plain_loop(classes, offset, threshold):
    boxes, scores = boxes_in_clusters(150, 15, classes=classes)
    kept = nms(boxes, scores, threshold, offset)[1].tolist()
    assert kept == slow_ops.nms(boxes, scores, threshold, offset)


@pytest.mark.parametrize(
    ('count', 'clusters', 'classes'),
    [(1000, 20, 1), (4000, 800, 5), (6000, 300, 80), (9000, 9000, 1)],
)
def test_matches_compiled(count, clusters, classes, compiled_run):
    boxes, scores = boxes_in_clusters(count, clusters, classes=classes)
    for threshold in (0.3, 0.5, 0.7):
        actual = nms(boxes, scores, threshold)[1]
        assert torch.equal(
            actual, compiled_run(nms, boxes, scores, threshold)[1]
        )


@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_boxes_that_are_no_numbers_suppress_nothing(value):
    boxes, scores = boxes_in_clusters(80, 8)
    expected = nms(boxes[1:], scores[1:], 0.5)[1] + 1
    boxes[0, 2] = value
    scores[0] = 2
    kept = nms(boxes, scores, 0.5)[1]
    assert kept.tolist() == [0, *expected.tolist()]


def test_equal_scores_keep_their_order():
    boxes = torch.tensor([[0.0, 0, 10, 10]]).repeat(100, 1)
    boxes[:, [0, 2]] += torch.arange(100)[:, None] // 2 * 20
    kept = nms(boxes, torch.full((100,), 0.5), 0.5)[1]
    assert kept.tolist() == list(range(0, 100, 2))


@pytest.mark.parametrize('count', [1, 300])
def test_degenerate_boxes_suppress_nothing(count):
    boxes = torch.tensor([[5.0, 5, 5, 5], [9, 9, 3, 3]]).repeat(count, 1)
    kept = nms(boxes, torch.rand(2 * count), 0.5)[1]
    assert len(kept) == 2 * count


def test_threshold_is_compared_in_the_type_of_the_boxes():
    """IoU 0.2 in float32 is above the double 0.2, but not above 0.2."""
    boxes = torch.tensor([[0.0, 0, 10, 10], [0.0, 0, 10, 2]])
    assert len(nms(boxes, torch.tensor([0.9, 0.8]), 0.2)[1]) == 2


@pytest.mark.parametrize(
    'dtype', [torch.float16, torch.bfloat16, torch.float64]
)
def test_other_types(dtype, device):
    boxes, scores = boxes_in_clusters(60, 6)
    boxes, scores = boxes.to(dtype), scores.to(dtype)
    kept = nms(boxes.to(device), scores.to(device), 0.5)[1]
    expected = slow_ops.nms(boxes.double(), scores.double(), 0.5)
    assert kept.tolist() == expected


def test_not_contiguous():
    boxes, scores = boxes_in_clusters(100, 10)
    wide = torch.stack([boxes, -boxes], -1)
    kept = nms(wide[..., 0], torch.stack([scores, scores], 1)[:, 0], 0.5)[1]
    assert torch.equal(kept, nms(boxes, scores, 0.5)[1])


def test_does_not_change_inputs():
    boxes, scores = boxes_in_clusters(100, 10)
    before = boxes.clone(), scores.clone()
    nms(boxes, scores, 0.5)
    soft_nms(boxes, scores)
    assert torch.equal(boxes, before[0])
    assert torch.equal(scores, before[1])


def random_dets(count: int) -> torch.Tensor:
    low = torch.rand(count, 2) * 60
    high = low + torch.rand(count, 2) * 40
    return torch.cat([low, high, torch.randperm(count)[:, None] / count], 1)


def groups(dets: torch.Tensor, threshold: float) -> list[list[int]]:
    return [group.tolist() for group in nms_match(dets, threshold)]


def test_matches_recorded_run(oracle):
    call = oracle('nms_match')
    actual = nms_match(call['inputs']['dets'], call['inputs']['iou'])
    assert len(actual) == len(call['outputs'])
    for group, expected in zip(actual, call['outputs']):
        assert torch.equal(group, expected)


@pytest.mark.parametrize('threshold', [0.0, 0.2, 0.6])
def test_nms_match_matches_plain_loop(threshold):
    dets = random_dets(120)
    assert groups(dets, threshold) == slow_ops.nms_match(dets, threshold)


def test_nms_match_matches_compiled(compiled_run):
    dets = random_dets(600)
    assert groups(dets, 0.4) == compiled_run(groups, dets, 0.4)


def test_edges():
    assert nms_match(torch.zeros(0, 5), 0.5) == []
    # At the threshold a box joins, other than in nms; a point never does.
    dets = torch.tensor(
        [[0, 0, 4, 4, 0.9], [0, 0, 4, 2, 0.8], [1, 1, 1, 1, 0.7]]
    )
    assert groups(dets, 0.5) == [[0, 1], [2]]
    assert groups(dets.half(), 0.5) == [[0, 1], [2]]


METHODS = ['naive', 'linear', 'gaussian']


def random_boxes(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    low = torch.rand(count, 2) * 60
    boxes = torch.cat([low, low + torch.rand(count, 2) * 40], 1)
    return boxes, (torch.randperm(count) + 1) / count


@pytest.mark.parametrize('method', METHODS)
def test_soft_nms_matches_recorded_runs(method, oracle, device):
    call = oracle(f'soft_nms_{method}')
    inputs = {
        key: value.to(device) if isinstance(value, torch.Tensor) else value
        for key, value in call['inputs'].items()
    }
    dets, index = soft_nms(**inputs)
    torch.testing.assert_close(dets.cpu(), call['outputs'][0])
    assert torch.equal(index.cpu(), call['outputs'][1])


def test_soft_nms_batched_matches_recorded_run(oracle):
    call = oracle('batched_soft_nms')
    dets, index = batched_nms(**call['inputs'])
    torch.testing.assert_close(dets, call['outputs'][0])
    assert torch.equal(index, call['outputs'][1])


@pytest.mark.parametrize('offset', [0, 1])
@pytest.mark.parametrize('min_score', [1e-3, 0.2])
@pytest.mark.parametrize('method', METHODS)
def test_soft_nms_matches_plain_loop(method, min_score, offset):
    boxes, scores = random_boxes(80)
    dets, index = soft_nms(boxes, scores, 0.3, 0.5, min_score, method, offset)
    expected = slow_ops.soft_nms(
        boxes,
        scores,
        threshold=0.3,
        sigma=0.5,
        min_score=min_score,
        method=method,
        offset=offset,
    )
    assert index.tolist() == [i for i, _ in expected]
    torch.testing.assert_close(
        dets[:, 4], torch.tensor([score for _, score in expected])
    )
    assert torch.equal(dets[:, :4], boxes[index])


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('equal', [False, True])
def test_soft_nms_matches_compiled(equal, method, compiled_run):
    """Equal scores too: the boxes then move as in the compiled loop."""
    boxes, scores = random_boxes(700)
    if equal:
        scores = (scores * 8).ceil() / 8
    args = (boxes, scores, 0.4, 0.5, 0.05, method)
    dets, index = soft_nms(*args)
    expected = compiled_run(soft_nms, *args)
    torch.testing.assert_close(dets, expected[0], rtol=1e-4, atol=1e-6)
    assert torch.equal(index, expected[1])


@pytest.mark.parametrize('method', METHODS)
def test_soft_nms_edges(method):
    none = soft_nms(torch.zeros(0, 4), torch.zeros(0), method=method)
    assert [len(part) for part in none] == [0, 0]
    # The best box stays even below the limit.
    one = soft_nms(torch.zeros(1, 4), torch.tensor([1e-5]), method=method)
    assert one[1].tolist() == [0]
    boxes = torch.tensor([[0.0, 0, 9, 9], [4.0, 4, 4, 4], [20, 0, 29, 9]])
    dets, index = soft_nms(boxes, torch.tensor([0.5, 0.7, 0.6]), method=method)
    assert index.tolist() == [1, 2, 0]
    torch.testing.assert_close(dets[:, 4], torch.tensor([0.7, 0.6, 0.5]))


@pytest.mark.parametrize('dtype', [torch.float16, torch.float64])
def test_soft_nms_other_types(dtype):
    boxes, scores = random_boxes(50)
    dets, index = soft_nms(boxes.to(dtype), scores.to(dtype))
    full, expected = soft_nms(
        boxes.to(dtype).float(), scores.to(dtype).float()
    )
    assert dets.dtype == dtype
    assert torch.equal(index, expected)
    torch.testing.assert_close(dets.float(), full, rtol=1e-2, atol=1e-2)
