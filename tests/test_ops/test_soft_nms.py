"""Soft NMS against recorded and compiled runs, and a plain loop."""

import numpy as np
import pytest
import torch
from mmcv.ops import batched_nms, soft_nms
from reference import slow_ops

from mmext.ops.soft_nms import decay

METHODS = ['naive', 'linear', 'gaussian']


def random_boxes(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    low = torch.rand(count, 2) * 60
    boxes = torch.cat([low, low + torch.rand(count, 2) * 40], 1)
    return boxes, (torch.randperm(count) + 1) / count


@pytest.fixture(params=[0, 10**6], ids=['row by row', 'at once'])
def _way(request, monkeypatch) -> None:
    """Both ways of the computation, whatever the number of boxes."""
    monkeypatch.setattr('mmext.ops.soft_nms._AT_ONCE', request.param)


@pytest.mark.usefixtures('_way')
@pytest.mark.parametrize('method', METHODS)
def test_matches_recorded_runs(method, oracle, device):
    call = oracle(f'soft_nms_{method}')
    inputs = {
        key: value.to(device) if isinstance(value, torch.Tensor) else value
        for key, value in call['inputs'].items()
    }
    dets, index = soft_nms(**inputs)
    torch.testing.assert_close(dets.cpu(), call['outputs'][0])
    assert torch.equal(index.cpu(), call['outputs'][1])


def test_batched_matches_recorded_run(oracle):
    call = oracle('batched_soft_nms')
    dets, index = batched_nms(**call['inputs'])
    torch.testing.assert_close(dets, call['outputs'][0])
    assert torch.equal(index, call['outputs'][1])


@pytest.mark.usefixtures('_way')
@pytest.mark.parametrize('offset', [0, 1])
@pytest.mark.parametrize('min_score', [1e-3, 0.2])
@pytest.mark.parametrize('method', METHODS)
def test_matches_plain_loop(method, min_score, offset):
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


@pytest.mark.usefixtures('_way')
@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('equal', [False, True])
def test_matches_compiled(equal, method, compiled_run):
    """Equal scores too: the boxes then move as in the compiled loop."""
    boxes, scores = random_boxes(700)
    if equal:
        scores = (scores * 8).ceil() / 8
    args = (boxes, scores, 0.4, 0.5, 0.05, method)
    dets, index = soft_nms(*args)
    expected = compiled_run(soft_nms, *args)
    torch.testing.assert_close(dets, expected[0], rtol=1e-4, atol=1e-6)
    assert torch.equal(index, expected[1])


@pytest.mark.usefixtures('_way')
@pytest.mark.parametrize('method', METHODS)
def test_edges(method):
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
def test_other_types(dtype):
    boxes, scores = random_boxes(50)
    dets, index = soft_nms(boxes.to(dtype), scores.to(dtype))
    full, expected = soft_nms(
        boxes.to(dtype).float(), scores.to(dtype).float()
    )
    assert dets.dtype == dtype
    assert torch.equal(index, expected)
    torch.testing.assert_close(dets.float(), full, rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures('_way')
def test_does_not_change_inputs():
    boxes, scores = random_boxes(50)
    before = boxes.clone(), scores.clone()
    soft_nms(boxes, scores)
    assert torch.equal(boxes, before[0])
    assert torch.equal(scores, before[1])


@pytest.mark.parametrize(
    ('method', 'expected'),
    [
        (0, [1, 0, 0]),
        (1, [1, 0.5, 0.25]),
        (2, np.exp([-0.25, -0.5, -1.125])),
    ],
)
def test_decay(method, expected):
    iou = np.array([np.sqrt(0.125), 0.5, 0.75])
    np.testing.assert_allclose(decay(iou, method, 0.5, 0.5), expected)
