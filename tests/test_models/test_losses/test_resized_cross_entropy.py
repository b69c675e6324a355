"""Strips and bands: the result does not depend on how rows are cut.

Nor on what works on them: PyTorch, or a kernel that numba compiles.
"""

import pytest
import torch
from helpers.torch_versions import counts_bytes
from helpers.toy_ranks import load_tool
from torch.nn import functional as F

from mmext.models.losses import _resized_cross_entropy as strips
from mmext.models.losses._resized_cross_entropy import (
    PixelTargets,
    StripPass,
    strip_cross_entropy,
)
from mmext.models.losses.resized_logits import engine_for, kernel_pass

TensorPeak = load_tool('benchmarks/live_bytes').TensorPeak


needs_numba = pytest.mark.skipif(kernel_pass() is None, reason='needs numba')
KINDS = pytest.mark.parametrize(
    'kind',
    [StripPass, pytest.param(kernel_pass(), marks=needs_numba)],
    ids=['pytorch', 'numba'],
)


def case(source, size, dtype=torch.float64, classes=5):
    """Logits, and targets with everything that a loss can have."""
    logits = torch.randn(2, classes, *source, dtype=dtype)
    shape = (2, *size)
    label = torch.randint(0, classes, shape, dtype=torch.uint8)
    targets = PixelTargets(
        label,
        torch.rand(shape) > 0.2,
        classes,
        dtype,
        torch.rand(classes, dtype=dtype),
        torch.rand(shape, dtype=dtype),
        0.1,
    )
    return logits, targets


def dense(logits, size, align_corners, targets):
    """The same from PyTorch, through all resized logits."""
    logits = logits.clone().requires_grad_()
    z = F.interpolate(
        logits, size=size, mode='bilinear', align_corners=align_corners
    )
    label = targets.label.long().masked_fill(~targets.valid, 255)
    loss = F.cross_entropy(
        z,
        label,
        targets.class_weight,
        ignore_index=255,
        reduction='none',
        label_smoothing=targets.label_smoothing,
    )
    if targets.weight is not None:
        loss = targets.weight * loss
    hits = ((z.argmax(1) == label) & targets.valid).sum()
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    return loss.detach(), hits, grad


@pytest.mark.parametrize('strip_bytes', [1, 20_000, 1 << 20])
@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize(
    ('source', 'size'),
    [((9, 70), (31, 150)), ((40, 5), (40, 9)), ((31, 80), (7, 33))],
)
def test_any_cut_matches_torch(
    source, size, align_corners, strip_bytes, monkeypatch
):
    monkeypatch.setattr(strips, 'STRIP_BYTES', strip_bytes)
    logits, targets = case(source, size)
    loss, hits, grad = dense(logits, size, align_corners, targets)
    given = logits.clone(), targets.label.clone()
    results = strip_cross_entropy(
        logits, size, align_corners, targets, with_grad=True, with_map=True
    )
    torch.testing.assert_close(results.loss, loss, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(results.total, loss.sum(), atol=0, rtol=1e-12)
    torch.testing.assert_close(results.grad, grad, atol=1e-12, rtol=1e-12)
    assert results.num_correct == hits
    assert torch.equal(logits, given[0])
    assert torch.equal(targets.label, given[1])


@needs_numba
@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('classes', [2, 5])
@pytest.mark.parametrize(
    ('source', 'size', 'strip_bytes', 'threads'),
    [
        ((9, 70), (31, 150), 20_000, 1),
        ((9, 256), (9, 256), 1 << 20, 1),
        ((40, 300), (40, 300), 20_000, 1),
        ((9, 257), (9, 257), 1 << 20, 2),
        ((7, 40), (50, 700), 60_000, 2),
        ((31, 600), (7, 300), 1 << 20, 3),
    ],
)
def test_kernel_at_the_edges_of_strips_tiles_and_threads(
    source, size, strip_bytes, threads, classes, align_corners, monkeypatch
):
    monkeypatch.setattr(strips, 'STRIP_BYTES', strip_bytes)
    logits, targets = case(source, size, torch.float32, classes)
    logits *= 3
    if threads == 1:
        targets = PixelTargets(
            targets.label, targets.valid, classes, torch.float32
        )
    loss, hits, grad = dense(logits, size, align_corners, targets)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        results = strip_cross_entropy(
            logits,
            size,
            align_corners,
            targets,
            with_grad=True,
            with_map=True,
            kind=kernel_pass(),
        )
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(results.loss, loss, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(results.total, loss.sum(), atol=0, rtol=1e-6)
    assert (results.grad - grad).norm() <= 1e-5 * grad.norm()
    assert results.num_correct == hits


@needs_numba
def test_what_works_on_the_strips(monkeypatch):
    """The kernel where it can, for any number of classes and any ratio."""

    def kind(logits):
        return getattr(engine_for(logits), 'keywords', {}).get('kind')

    logits = torch.zeros(1, 2, 4, 4)
    assert kind(logits) is kernel_pass()
    assert kind(logits.bfloat16()) is kernel_pass()
    assert kind(logits.double()) is None
    monkeypatch.setenv('MMEXT_OPS', 'pytorch')
    assert kind(logits) is None


@KINDS
@counts_bytes
@pytest.mark.parametrize(
    ('shape', 'size', 'bound'),
    [((4, 150, 32, 32), 128, 0.40), ((2, 19, 32, 32), 256, 0.30)],
    ids=['ade20k', 'cityscapes'],
)
def test_memory_is_a_fraction_of_the_resized_logits(
    shape, size, bound, kind, monkeypatch
):
    """A sixteenth of the pixels, so a sixteenth of a strip."""
    monkeypatch.setattr(strips, 'STRIP_BYTES', strips.STRIP_BYTES // 16)
    logits = torch.randn(shape)
    label = torch.randint(0, shape[1], (shape[0], size, size))
    targets = PixelTargets(label, label != 3, shape[1], torch.float32)
    with TensorPeak(leave_out=[logits, label, targets.valid]) as memory:
        strip_cross_entropy(
            logits, (size, size), False, targets, with_grad=True, kind=kind
        )
    assert memory.peak <= bound * 4 * label.numel() * shape[1]


def test_share_of_weights_that_are_all_zero():
    label = torch.zeros(1, 1, 1, dtype=torch.int64)
    targets = PixelTargets(
        label, label == 0, 2, torch.float32, torch.zeros(2), None, 0.1
    )
    assert targets.share().tolist() == [0, 0]
