"""IoU of boxes against the definition."""

import math

import numpy as np
import pytest
import torch
from reference import slow_ops

from mmext.ops._iou import box_rows, iou_matrix, iou_with_rest

# Ordinary, touching, nested, a line, a point twice, reversed.
BOXES = [
    [0, 0, 10, 10],
    [10, 0, 20, 10],
    [2, 3, 8, 7],
    [5, 0, 5, 10],
    [4, 4, 4, 4],
    [4, 4, 4, 4],
    [9, 9, 3, 3],
]


def expected(offset: int) -> torch.Tensor:
    rows = [[slow_ops.iou(a, b, offset) for b in BOXES] for a in BOXES]
    return torch.tensor(rows)


def test_box_rows():
    rows = box_rows(torch.tensor(BOXES), 1)
    assert rows.dtype == torch.float32
    assert rows.is_contiguous()
    assert rows[:, 2].tolist() == [2, 3, 8, 7, 35]
    assert box_rows(torch.zeros(0, 4), 0).shape == (5, 0)
    assert box_rows(torch.zeros(1, 4).double(), 0).dtype == torch.float64


@pytest.mark.parametrize('offset', [0, 1])
def test_iou_matrix(offset):
    rows = box_rows(torch.tensor(BOXES), offset)
    torch.testing.assert_close(
        iou_matrix(rows, rows[:, :4], offset),
        expected(offset)[:, :4],
        equal_nan=True,
    )


def test_two_points_have_no_iou():
    rows = box_rows(torch.tensor(BOXES), 0)
    assert math.isnan(iou_matrix(rows, rows, 0)[4, 5])
    assert math.isnan(iou_with_rest(rows[:, 4:].numpy(), 0)[0])


@pytest.mark.parametrize('offset', [0, 1])
def test_iou_with_rest(offset):
    rows = box_rows(torch.tensor(BOXES), offset).numpy()
    before = rows.copy()
    for i in range(len(BOXES)):
        np.testing.assert_allclose(
            iou_with_rest(rows[:, i:], offset),
            expected(offset)[i, i + 1 :].numpy(),
            rtol=1e-6,
        )
    np.testing.assert_array_equal(rows, before)
