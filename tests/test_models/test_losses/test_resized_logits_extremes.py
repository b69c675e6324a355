"""Losses of resized logits where numbers are infinite, huge or equal."""

import pytest
import torch
from torch.nn import functional as F

from mmext.models.losses.resized_logits import ResizedLogits


def make(classes, size):
    """Logits 4 x 4 that need a gradient, labels, valid pixels."""
    logits = torch.randn(2, classes, 4, 4) * 3
    label = torch.randint(0, classes, (2, *size))
    return logits.requires_grad_(), label, torch.rand(2, *size) > 0.3


def dense_loss(logits, label, valid, size):
    """Losses of all pixels and hits, through the resized logits."""
    z = F.interpolate(logits, size=size, mode='bilinear', align_corners=False)
    label = label.masked_fill(~valid, -100)
    loss = F.cross_entropy(z, label, reduction='none')
    return loss, ((z.argmax(1) == label) & valid).sum()


def assert_same(found, wanted, tolerance):
    """Relative difference of norms."""
    difference = torch.linalg.vector_norm(found - wanted)
    assert difference <= tolerance * torch.linalg.vector_norm(wanted)


@pytest.mark.parametrize('size', [(4, 4), (7, 7), (12, 12)])
@pytest.mark.parametrize('fill', [-torch.inf, torch.finfo().min, -1e4])
def test_deep_negative_logits_of_other_classes(size, fill):
    """Also where PyTorch's resize gives NaN: a weight of 0 times -inf."""
    logits, label, valid = make(5, size)
    valid &= label < 3
    with torch.no_grad():
        logits[:, 3:] = fill
    kept = logits.detach()[:, :3].clone().requires_grad_()
    loss, hits = dense_loss(kept, label, valid, size)
    loss.sum().backward()
    resized = ResizedLogits(logits, size)
    total = resized.cross_entropy_sum(label, valid)
    nll = resized.nll(label, valid)
    (nll.sum() + total).backward()
    assert_same(total, loss.sum(), 1e-6)
    assert_same(nll, loss, 1e-6)
    assert_same(logits.grad[:, :3], 2 * kept.grad, 1e-5)
    assert logits.grad[:, 3:].eq(0).all()
    assert resized.num_correct == hits


def test_label_whose_logit_is_minus_infinite():
    """The loss is inf as in PyTorch; what is not valid stays out of it."""
    logits = torch.zeros(1, 2, 2, 2)
    logits[:, 1] = -torch.inf
    label = torch.tensor([[[0, 1], [0, 1]]])
    resized = ResizedLogits(logits, (2, 2))
    nll = resized.nll(label, label >= 0)
    assert nll.tolist() == [[[0, torch.inf], [0, torch.inf]]]
    assert resized.cross_entropy_sum(label, label >= 0) == torch.inf
    assert resized.cross_entropy_sum(label, label == 0) == 0


def test_winners_far_apart():
    """No underflow where neighbours prefer classes by a large margin."""
    logits = torch.zeros(1, 3, 2, 2)
    logits[0, 0, 0] = logits[0, 1, 1] = 1e4
    label = torch.full((1, 7, 7), 2)
    logits.requires_grad_()
    loss, _ = dense_loss(logits, label, label == 2, (7, 7))
    (wanted,) = torch.autograd.grad(loss.sum(), logits)
    total = ResizedLogits(logits, (7, 7)).cross_entropy_sum(label, label == 2)
    (found,) = torch.autograd.grad(total, logits)
    assert_same(total, loss.sum(), 1e-6)
    assert_same(found, wanted, 1e-5)


def test_nan_is_not_hidden():
    logits, label, valid = make(3, (8, 8))
    with torch.no_grad():
        logits[0, 1, 2, 2] = torch.nan
    valid[:] = True
    resized = ResizedLogits(logits, (8, 8))
    total = resized.cross_entropy_sum(label, valid)
    total.backward()
    assert total.isnan()
    assert logits.grad[0].isnan().any()
    assert logits.grad[1].isfinite().all()


def test_of_equal_logits_the_first_counts():
    logits = torch.zeros(1, 4, 2, 2)
    logits[:, 0] = -1
    resized = ResizedLogits(logits, (4, 4))
    for label, hits in ((0, 0), (1, 16), (2, 0), (3, 0)):
        labels = torch.full((1, 4, 4), label)
        resized.cross_entropy_sum(labels, labels == label)
        assert resized.num_correct == hits
        assert resized.num_correct.dtype == torch.int64
