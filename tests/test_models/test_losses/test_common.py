"""What holds for every loss: padding, no data, half types, wrong labels."""

from functools import partial

import pytest
import torch
from helpers.device import device_waits, needs_device

from mmext.models.losses import (
    CheckedBoundaryLoss,
    CheckedCrossEntropyLoss,
    CheckedOhemCrossEntropy,
    LabelRangeError,
    ResizedLogits,
)

CLASSES, SIZE, IGNORED = 5, (6, 7), 255
WEIGHT = [0.5, 1.0, 2.0, 0.25, 3.0]
ENTROPY = partial(CheckedCrossEntropyLoss, ignore_index=IGNORED)
LOSSES = {
    **{
        f'softmax, {name}': partial(
            ENTROPY, denominator=name, class_weight=WEIGHT
        )
        for name in ('numel', 'valid', 'weight_sum')
    },
    'softmax, smooth': partial(ENTROPY, label_smoothing=0.1),
    **{
        f'soft labels, {name}': partial(
            ENTROPY, denominator=name, class_weight=WEIGHT
        )
        for name in ('numel', 'valid', 'weight_sum')
    },
    'sigmoid': partial(ENTROPY, use_sigmoid=True),
    'sigmoid, valid': partial(ENTROPY, use_sigmoid=True, avg_non_ignore=True),
    'one channel': partial(ENTROPY, use_sigmoid=True),
    'ohem': partial(CheckedOhemCrossEntropy, min_kept=9, class_weight=WEIGHT),
    'edges': CheckedBoundaryLoss,
}
SOFT = [name for name in LOSSES if name.startswith('soft labels')]
RESIZED = [
    name
    for name in LOSSES
    if name.startswith('soft') or name in ('ohem', 'edges')
]
every_loss = pytest.mark.parametrize('name', LOSSES)
with_indices = pytest.mark.parametrize(
    'name', [name for name in LOSSES if name not in SOFT]
)


def data(name, images=2, size=SIZE, dtype=torch.float32):
    """Logits that need a gradient, and labels of which a part is ignored."""
    binary = name in ('one channel', 'edges')
    channels = 1 if binary else CLASSES
    pred = torch.randn(images, channels, *size).to(dtype).requires_grad_()
    label = torch.randint(0, 2 if binary else CLASSES, (images, *size))
    label[:, 0] = IGNORED
    if name in SOFT:
        known = (label != IGNORED).unsqueeze(1)
        label = torch.rand(images, CLASSES, *size).softmax(1)
        label = label.where(known, torch.tensor(float(IGNORED)))
    return pred, label


def gradient(loss, pred):
    return torch.autograd.grad(loss, pred, retain_graph=True)[0]


@every_loss
def test_all_ignored_is_zero_with_a_graph(name):
    pred, label = data(name)
    loss = LOSSES[name]()(pred, torch.full_like(label, IGNORED))
    assert loss == 0
    assert (gradient(loss, pred) == 0).all()


@every_loss
def test_no_image(name):
    pred, label = data(name, images=0)
    loss = LOSSES[name]()(pred, label)
    assert loss == 0
    assert gradient(loss, pred).shape == pred.shape


@every_loss
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_accumulates_in_float32(name, dtype):
    """More pixels than float16 can count."""
    pred, label = data(name, 1, (300, 300), dtype)
    loss = LOSSES[name]()(pred, label)
    assert loss.dtype == torch.float32
    expected = LOSSES[name]()(pred.detach().float(), label)
    torch.testing.assert_close(loss, expected)
    assert gradient(loss, pred).dtype == dtype


@with_indices
def test_out_of_range(name):
    pred, label = data(name)
    ignored = label.clone()
    label[1, 2, 3], ignored[1, 2, 3] = 9, IGNORED
    with pytest.raises(LabelRangeError, match=r'9 .1.'):
        LOSSES[name]()(pred, label)
    torch.testing.assert_close(
        LOSSES[name](out_of_range='ignore')(pred, label),
        LOSSES[name]()(pred, ignored),
    )


@pytest.mark.parametrize('name', RESIZED)
@pytest.mark.parametrize('align_corners', [False, True])
def test_low_resolution_logits(name, align_corners):
    small, _ = data(name, size=(3, 4), dtype=torch.float64)
    _, label = data(name)
    module = LOSSES[name]()
    resized = ResizedLogits(small, SIZE, align_corners)
    loss, expected = module(resized, label), module(resized.dense(), label)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        gradient(loss, small), gradient(expected, small)
    )
    assert gradient(loss, small).abs().sum() > 0


@needs_device
@pytest.mark.parametrize(
    ('name', 'resized'),
    [(name, False) for name in LOSSES] + [(name, True) for name in RESIZED],
)
def test_does_not_wait(name, resized):
    def run(module, pred, *others):
        if resized:
            pred = ResizedLogits(pred[..., ::2, ::2], SIZE)
        module(pred, *others).backward()

    weights = [] if name == 'edges' else [torch.rand(2, *SIZE)]
    assert device_waits(run, LOSSES[name](), *data(name), *weights) == []
