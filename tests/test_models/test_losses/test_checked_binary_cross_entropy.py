"""Sigmoid cross-entropy against PyTorch's, values and gradients."""

import pytest
import torch
import torch.nn.functional as F
from helpers.device import device_waits, needs_device

from mmext.models.losses.checked_binary_cross_entropy import (
    checked_binary_cross_entropy,
    checked_mask_cross_entropy,
)
from mmext.models.losses.label_range import LabelRangeError, LabelRangeMonitor


def gradient(loss: torch.Tensor, pred: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, pred, retain_graph=True)[0]


def assert_same(loss, expected, pred) -> None:
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(gradient(loss, pred), gradient(expected, pred))


def logits(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize('num_classes', [1, 2, 19])
@pytest.mark.parametrize('ignore', [-100, 255])
@pytest.mark.parametrize('denominator', ['numel', 'valid'])
def test_indices_with_background(num_classes, ignore, denominator):
    """MMDetection's convention: C is the label of no class."""
    pred = logits(30, num_classes)
    label = torch.randint(0, num_classes + 1, (30,))
    label[::4] = ignore
    known = label != ignore
    hot = F.one_hot(label.where(known, torch.tensor(0)), num_classes + 1)
    item = F.binary_cross_entropy_with_logits(
        pred, hot[:, :-1].double(), reduction='none'
    )
    item = item * known.unsqueeze(1)
    count = item.numel()
    if denominator == 'valid':
        count = known.sum() * num_classes
    loss = checked_binary_cross_entropy(
        pred, label, ignore_index=ignore, denominator=denominator
    )
    assert_same(loss, item.sum() / count, pred)


def test_indices_of_maps_with_class_weights():
    """Weights belong to classes, also where W equals C."""
    pred = logits(2, 3, 4, 3)
    label = torch.randint(0, 3, (2, 4, 3))
    label[0, 0] = 255
    known = (label != 255).unsqueeze(1)
    weight = torch.tensor([0.5, 2.0, 5.0])
    hot = F.one_hot(label.where(label != 255, torch.tensor(0)), 3)
    item = F.binary_cross_entropy_with_logits(
        pred,
        hot.movedim(-1, 1).double(),
        pos_weight=weight.double().view(3, 1, 1),
        reduction='none',
    )
    expected = (item * known).sum() / (known.sum() * 3)
    loss = checked_binary_cross_entropy(
        pred, label, class_weight=weight, ignore_index=255
    )
    assert_same(loss, expected, pred)


def test_background_is_no_label_of_maps():
    with pytest.raises(LabelRangeError, match=r'in \[0, 2\]'):
        checked_binary_cross_entropy(
            torch.zeros(1, 3, 2), torch.tensor([[0, 3]])
        )


def test_one_class_against_the_ground():
    pred = logits(2, 1, 4, 5)
    label = torch.randint(0, 2, (2, 4, 5), dtype=torch.uint8)
    label[1, 2] = 255
    known = label != 255
    item = F.binary_cross_entropy_with_logits(
        pred.squeeze(1),
        label.double(),
        pos_weight=torch.tensor(3.0).double(),
        reduction='none',
    )
    loss = checked_binary_cross_entropy(
        pred, label, class_weight=torch.tensor([3.0]), ignore_index=255
    )
    assert_same(loss, (item * known).sum() / known.sum(), pred)
    with pytest.raises(LabelRangeError):
        checked_binary_cross_entropy(
            pred, label.masked_fill(known, 2), ignore_index=255
        )


@pytest.mark.parametrize('shape', [(9,), (4, 3), (2, 3, 4)])
def test_targets_in_the_shape_of_logits(shape):
    pred, target = logits(*shape), torch.rand(shape)
    target.view(-1)[0] = 255
    known = target != 255
    item = F.binary_cross_entropy_with_logits(
        pred, target.double(), reduction='none'
    )
    expected = item.where(known, item * 0)
    for denominator, count in (
        ('numel', item.numel()),
        ('valid', known.sum()),
    ):
        loss = checked_binary_cross_entropy(
            pred, target, ignore_index=255, denominator=denominator
        )
        assert_same(loss, expected.sum() / count, pred)


def test_smoothing():
    pred = logits(5)
    target = torch.tensor([0.0, 1, 1, 0, 1])
    loss = checked_binary_cross_entropy(pred, target, label_smoothing=0.2)
    expected = F.binary_cross_entropy_with_logits(
        pred, target.double() * 0.8 + 0.1
    )
    assert_same(loss, expected, pred)


def test_masks():
    pred = logits(4, 3, 5, 6)
    target = torch.rand(4, 5, 6)
    label = torch.tensor([2, 0, 1, 2])
    own = pred[torch.arange(4), label]
    loss = checked_mask_cross_entropy(pred, target, label)
    assert loss.shape == (1,)
    expected = F.binary_cross_entropy_with_logits(own, target.double())
    assert_same(loss[0], expected, pred)
    weight = torch.tensor([1.0, 2.0, 4.0])
    loss = checked_mask_cross_entropy(pred, target, label, class_weight=weight)
    expected = F.binary_cross_entropy_with_logits(
        own, target.double(), weight[label].double().view(-1, 1, 1)
    )
    assert_same(loss[0], expected, pred)


def test_masks_check_labels_and_targets():
    pred, target = torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4)
    with pytest.raises(LabelRangeError, match=r'labels must be in \[0, 2\]'):
        checked_mask_cross_entropy(pred, target, torch.tensor([0, 3]))
    with pytest.raises(LabelRangeError, match='soft labels'):
        checked_mask_cross_entropy(pred, target + 2, torch.tensor([0, 1]))


def test_bool_targets():
    pred, target = logits(2, 6), torch.rand(2, 6) > 0.5
    torch.testing.assert_close(
        checked_binary_cross_entropy(pred, target),
        checked_binary_cross_entropy(pred, target.long()),
    )


@needs_device
def test_masks_do_not_wait():
    def run(pred, target, label, weight):
        monitor = LabelRangeMonitor()
        # The second check would look at the first one's count, on the host.
        monitor.has_hook = True
        checked_mask_cross_entropy(
            pred, target, label, class_weight=weight, monitor=monitor
        ).backward()

    pred, target = logits(2, 3, 4, 4), torch.rand(2, 4, 4)
    label, weight = torch.tensor([0, 2]), torch.rand(3)
    assert device_waits(run, pred, target, label, weight) == []


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'denominator': 'weight_sum'}, "'numel' or 'valid' for sigmoid"),
        ({'label': torch.zeros(2, 2).long()}, 'label must have the shape'),
        ({'weight': torch.ones(5)}, 'weight must have the shape of the loss'),
        ({'class_weight': torch.ones(4)}, 'each of 3 classes, got 4'),
        ({'label_smoothing': -1}, 'label_smoothing'),
        ({'reduction': 'mode'}, 'reduction must be'),
    ],
)
def test_rejects(change, message):
    given = {
        'pred': torch.zeros(2, 3, 4),
        'label': torch.zeros(2, 4).long(),
        **change,
    }
    with pytest.raises(ValueError, match=message):
        checked_binary_cross_entropy(**given)


def test_masks_reject_shapes():
    with pytest.raises(ValueError, match=r'pred must be \(N, C, \*\)'):
        checked_mask_cross_entropy(
            torch.zeros(2, 3, 4), torch.zeros(2, 3), torch.zeros(2).long()
        )
