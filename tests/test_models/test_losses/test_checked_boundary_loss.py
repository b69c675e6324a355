"""Boundary loss: that of MMSegmentation, and its holes."""

import pytest
import torch
from helpers.sync_census import SyncCensus
from mmseg.models.losses import BoundaryLoss

from mmext.models.losses import (
    CheckedBoundaryLoss,
    LabelRangeError,
    ResizedLogits,
)


def data(ignored: bool = True):
    pred = torch.randn(2, 1, 6, 7, requires_grad=True)
    edges = (torch.rand(2, 6, 7) < 0.2).to(torch.uint8)
    if ignored:
        edges[:, 0] = 255
    return pred, edges


@pytest.mark.parametrize('ignored', [False, True])
@pytest.mark.parametrize('dtype', [torch.uint8, torch.int64])
def test_is_that_of_mmseg(ignored, dtype):
    pred, edges = data(ignored)
    loss = CheckedBoundaryLoss(loss_weight=20.0)(pred, edges.to(dtype))
    expected = BoundaryLoss(loss_weight=20.0)(pred, edges)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(value, pred)[0] for value in (loss, expected))
    )


@pytest.mark.parametrize('value', [0, 1, 255])
def test_one_kind_alone_is_finite(value):
    pred, edges = data()
    loss = CheckedBoundaryLoss()(pred, edges.fill_(value))
    assert loss == 0
    assert (torch.autograd.grad(loss, pred)[0] == 0).all()


def test_half_accumulates_in_float32():
    pred, edges = data()
    half = pred.detach().half().requires_grad_()
    loss = CheckedBoundaryLoss()(half, edges)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(
        loss, CheckedBoundaryLoss()(half.detach().float(), edges)
    )


def test_out_of_range():
    pred, edges = data()
    edges[1, 2, 3] = 7
    with pytest.raises(LabelRangeError, match='loss_boundary: 1 pixels'):
        CheckedBoundaryLoss()(pred, edges)
    loss = CheckedBoundaryLoss(out_of_range='ignore')(pred, edges)
    edges[1, 2, 3] = 255
    torch.testing.assert_close(loss, CheckedBoundaryLoss()(pred, edges))


def test_value_of_padding():
    """That of the constructor, else that of the call, else 255."""
    pred, edges = data()
    expected = CheckedBoundaryLoss()(pred, edges)
    other = edges.masked_fill(edges == 255, 11)
    for module, args in (
        (CheckedBoundaryLoss(), (11,)),
        (CheckedBoundaryLoss(ignore_index=11), ()),
        (CheckedBoundaryLoss(ignore_index=11), (255,)),
    ):
        torch.testing.assert_close(module(pred, other, *args), expected)
    with pytest.raises(LabelRangeError, match='255'):
        CheckedBoundaryLoss()(pred, edges, 11)
    with pytest.raises(LabelRangeError, match='11'):
        CheckedBoundaryLoss()(pred, other)


def test_low_resolution_logits():
    small = torch.randn(2, 1, 3, 4, requires_grad=True)
    _, edges = data()
    resized = ResizedLogits(small, (6, 7))
    loss = CheckedBoundaryLoss()(resized, edges)
    torch.testing.assert_close(
        loss, CheckedBoundaryLoss()(resized.dense(), edges)
    )
    assert torch.autograd.grad(loss, small)[0].abs().sum() > 0


def test_empty():
    pred = torch.zeros(0, 1, 2, 2, requires_grad=True)
    loss = CheckedBoundaryLoss()(pred, torch.zeros(0, 2, 2).long())
    assert loss == 0
    assert torch.autograd.grad(loss, pred)[0].shape == pred.shape


@pytest.mark.parametrize('align_corners', [False, True])
def test_gradcheck(align_corners):
    small = torch.randn(1, 1, 2, 3, dtype=torch.float64, requires_grad=True)
    edges = (torch.rand(1, 4, 5) < 0.3).long()
    assert torch.autograd.gradcheck(
        lambda x: CheckedBoundaryLoss()(
            ResizedLogits(x, (4, 5), align_corners), edges
        ),
        small,
    )


def test_does_not_wait():
    pred, edges = data()
    module = CheckedBoundaryLoss()
    module.label_range.deferred = True
    with SyncCensus() as census:
        module(pred, edges).backward()
    assert census.ops == []


@pytest.mark.parametrize(
    'shapes', [((2, 2, 3, 3), (2, 3, 3)), ((2, 1, 3, 3), (2, 1, 3, 3))]
)
def test_rejects_shapes(shapes):
    with pytest.raises(ValueError, match=r'bd_pre must be \(N, 1, H, W\)'):
        CheckedBoundaryLoss()(
            torch.zeros(shapes[0]), torch.zeros(shapes[1]).long()
        )


def test_rejects_what_is_no_class_index():
    pred, edges = data()
    with pytest.raises(TypeError, match='integer dtype, got'):
        CheckedBoundaryLoss()(pred, edges.float())
    with pytest.raises(ValueError, match=r"out_of_range must be .* got 'no'"):
        CheckedBoundaryLoss(out_of_range='no')
