"""NMS with groups against recorded and compiled runs, and a plain loop."""

import pytest
import torch
from mmcv.ops import nms_match
from reference import slow_ops


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
def test_matches_plain_loop(threshold):
    dets = random_dets(120)
    assert groups(dets, threshold) == slow_ops.nms_match(dets, threshold)


def test_matches_compiled(compiled_run):
    dets = random_dets(600)
    assert groups(dets, 0.4) == compiled_run(groups, dets, 0.4)


def test_every_box_is_in_one_group():
    flat = [i for group in groups(random_dets(300), 0.3) for i in group]
    assert sorted(flat) == list(range(300))


def test_edges():
    assert nms_match(torch.zeros(0, 5), 0.5) == []
    # At the threshold a box joins, other than in nms; a point never does.
    dets = torch.tensor(
        [[0, 0, 4, 4, 0.9], [0, 0, 4, 2, 0.8], [1, 1, 1, 1, 0.7]]
    )
    assert groups(dets, 0.5) == [[0, 1], [2]]
    assert groups(dets.half(), 0.5) == [[0, 1], [2]]
