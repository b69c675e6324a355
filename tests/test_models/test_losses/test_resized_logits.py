"""Losses of resized logits against ``F.interpolate`` + ``F.cross_entropy``."""

import itertools

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mmext.models.losses.resized_logits import ResizedLogits

# Loss (relative) and gradient (relative, by norm).
TOLERANCE = {torch.float64: (1e-12, 1e-12), torch.float32: (1e-6, 1e-5)}
SIZES = [
    ((5, 7), (11, 13)),
    ((16, 16), (64, 64)),
    ((6, 40), (13, 100)),
    ((9, 8), (9, 8)),
    ((1, 6), (8, 9)),
    ((8, 1), (1, 5)),
    ((4, 4), (1, 1)),
    ((20, 21), (7, 5)),
]
GARBAGE = [255, -7, 10**6]


@pytest.fixture(params=['numba', 'pytorch'])
def _both_engines(request, monkeypatch):
    """With numba's kernel, where it is installed, and without."""
    monkeypatch.setenv('MMEXT_OPS', request.param)


both_engines = pytest.mark.usefixtures('_both_engines')


def make(classes, source, size, dtype, images=2):
    """Logits that need a gradient, labels with garbage, valid pixels."""
    logits = torch.randn(images, classes, *source) * 3
    label = torch.randint(0, classes, (images, *size))
    valid = torch.rand(images, *size) > 0.3
    garbage = torch.tensor(GARBAGE)[torch.randint(3, label.shape)]
    label = torch.where(valid, label, garbage)
    return logits.to(dtype).requires_grad_(), label, valid


def dense_loss(logits, label, valid, size, align_corners, **kwargs):
    """Losses of all pixels and hits, through the resized logits."""
    z = F.interpolate(
        logits, size=size, mode='bilinear', align_corners=align_corners
    )
    label = label.long().masked_fill(~valid, -100)
    loss = F.cross_entropy(z, label, reduction='none', **kwargs)
    return loss, ((z.argmax(1) == label) & valid).sum()


def assert_same(result, wanted, tolerance):
    """Relative difference of norms; both may be zero."""
    difference = torch.linalg.vector_norm((result - wanted).double())
    limit = tolerance * torch.linalg.vector_norm(wanted.double())
    assert difference <= limit, (difference, limit)


@pytest.mark.parametrize('dtype', list(TOLERANCE), ids=str)
@pytest.mark.parametrize('classes', [2, 19, 150])
@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize(('source', 'size'), SIZES)
def test_matches_torch(source, size, align_corners, classes, dtype):
    loss_limit, grad_limit = TOLERANCE[dtype]
    logits, label, valid = make(classes, source, size, dtype)
    for smoothing, weighted in itertools.product((0.0, 0.2), (0, 1)):
        class_weight = torch.rand(classes, dtype=dtype) if weighted else None
        weight = torch.rand(label.shape, dtype=dtype) if weighted else None
        loss, hits = dense_loss(
            logits,
            label,
            valid,
            size,
            align_corners,
            weight=class_weight,
            label_smoothing=smoothing,
        )
        if weighted:
            loss = loss * weight
            weight = weight.masked_fill(~valid, torch.nan)
        (wanted,) = torch.autograd.grad(loss.sum() / 7, logits)
        resized = ResizedLogits(logits, size, align_corners)
        total = resized.cross_entropy_sum(
            label,
            valid,
            class_weight=class_weight,
            weight=weight,
            label_smoothing=smoothing,
        )
        (grad,) = torch.autograd.grad(total / 7, logits)
        assert total.dtype == grad.dtype == dtype
        assert_same(total, loss.sum(), loss_limit)
        assert_same(grad, wanted, grad_limit)
        assert resized.num_correct == hits


@pytest.mark.parametrize('dtype', list(TOLERANCE), ids=str)
@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize(('source', 'size'), SIZES)
def test_nll_matches_torch(source, size, align_corners, dtype):
    loss_limit, grad_limit = TOLERANCE[dtype]
    logits, label, valid = make(19, source, size, dtype)
    loss, hits = dense_loss(logits, label, valid, size, align_corners)
    direction = torch.randn(label.shape, dtype=dtype)
    (wanted,) = torch.autograd.grad((loss * direction).sum(), logits)
    resized = ResizedLogits(logits, size, align_corners)
    nll = resized.nll(label, valid)
    (grad,) = torch.autograd.grad((nll * direction).sum(), logits)
    assert_same(nll, loss, loss_limit)
    assert_same(grad, wanted, grad_limit)
    assert resized.num_correct == hits
    assert nll[~valid].eq(0).all()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('autocast', [False, True])
def test_half_and_autocast(dtype, autocast):
    """Exact for the logits as given: work is in float32, autocast or not."""
    logits, label, valid = make(19, (8, 8), (32, 32), dtype)
    exact = logits.detach().double().requires_grad_()
    loss, _ = dense_loss(exact, label, valid, (32, 32), False)
    loss.sum().backward()
    with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
        resized = ResizedLogits(logits, (32, 32))
        total = resized.cross_entropy_sum(label, valid)
        nll = resized.nll(label, valid)
        (results,) = torch.autograd.grad(total, logits)
        (by_pixel,) = torch.autograd.grad(nll.sum(), logits)
    assert total.dtype == nll.dtype == torch.float32
    assert results.dtype == by_pixel.dtype == dtype
    assert_same(total, loss.sum(), 1e-6)
    assert_same(nll, loss, 1e-6)
    for grad in (results, by_pixel):
        assert_same(grad, exact.grad, torch.finfo(dtype).eps)


def test_scaled_gradient_of_half_logits_is_not_rounded_twice():
    """A loss scale comes in before the gradient is made half."""
    logits, label, valid = make(2, (4, 4), (16, 16), torch.float16)
    exact = logits.detach().double().requires_grad_()
    loss, _ = dense_loss(exact, label, valid, (16, 16), False)
    (loss.sum() * 1e-6).backward()
    resized = ResizedLogits(logits, (16, 16))
    total = resized.cross_entropy_sum(label, valid)
    (grad,) = torch.autograd.grad(total * 1e-6 * 2.0**20, logits)
    assert_same(grad.double() / 2.0**20, exact.grad, 1e-3)


@both_engines
@pytest.mark.parametrize(
    'dtype', [torch.uint8, torch.int8, torch.int16, torch.int32]
)
def test_integer_labels_of_any_dtype(dtype):
    logits, label, valid = make(19, (4, 4), (9, 9), torch.float32)
    resized = ResizedLogits(logits, (9, 9))
    wanted = resized.cross_entropy_sum(label, valid)
    narrow = label.masked_fill(~valid, torch.iinfo(dtype).max).to(dtype)
    given = narrow.clone()
    assert torch.equal(resized.cross_entropy_sum(narrow, valid), wanted)
    assert torch.equal(narrow, given)


@both_engines
def test_channels_last():
    logits, label, valid = make(19, (8, 9), (20, 21), torch.float32)
    last = logits.detach().to(memory_format=torch.channels_last)
    last.requires_grad_()
    for tensor in (logits, last):
        ResizedLogits(tensor, (20, 21)).cross_entropy_sum(
            label, valid
        ).backward()
    assert torch.equal(logits.grad, last.grad)


@both_engines
def test_without_valid_pixel():
    logits, label, valid = make(5, (4, 4), (9, 9), torch.float32)
    resized = ResizedLogits(logits, (9, 9))
    none = torch.zeros_like(valid)
    loss = resized.cross_entropy_sum(label, none, class_weight=torch.ones(5))
    nll = resized.nll(label, none)
    assert loss == 0
    assert nll.eq(0).all()
    assert resized.num_correct == 0
    (loss + nll.sum()).backward()
    assert logits.grad.eq(0).all()


@both_engines
def test_without_image():
    logits, label, valid = make(5, (4, 4), (9, 9), torch.float32, images=0)
    resized = ResizedLogits(logits, (9, 9))
    loss = resized.cross_entropy_sum(label, valid)
    nll = resized.nll(label, valid)
    assert loss == 0
    assert nll.shape == (0, 9, 9)
    (loss + nll.sum()).backward()
    assert logits.grad.shape == logits.shape


@pytest.mark.parametrize('use_reentrant', [False, True])
def test_inside_a_checkpoint(use_reentrant):
    logits, label, valid = make(5, (4, 4), (9, 9), torch.float32)

    def loss(x):
        resized = ResizedLogits(x, (9, 9))
        nll = resized.nll(label, valid)
        return resized.cross_entropy_sum(label, valid) + nll.sum()

    (wanted,) = torch.autograd.grad(loss(logits), logits)
    checkpoint(loss, logits, use_reentrant=use_reentrant).backward()
    assert torch.equal(logits.grad, wanted)


@pytest.mark.parametrize('method', ['cross_entropy_sum', 'nll'])
def test_rejects_second_derivatives(method):
    logits, label, valid = make(5, (4, 4), (9, 9), torch.float32)
    loss = getattr(ResizedLogits(logits, (9, 9)), method)(label, valid)
    with pytest.raises(RuntimeError, match='create_graph must be False'):
        torch.autograd.grad(loss.sum(), logits, create_graph=True)


def test_loss_does_not_keep_the_logits():
    """A logged loss must not hold a batch."""
    logits, label, valid = make(5, (4, 4), (9, 9), torch.float32)
    resized = ResizedLogits(logits * 1, (9, 9))
    total = resized.cross_entropy_sum(label, valid)
    nll = resized.nll(label, valid)
    (total + nll.sum()).backward()
    for loss in (total, nll):
        held = vars(loss.grad_fn)
        assert not any(isinstance(value, torch.Tensor) for value in held)
        with pytest.raises(RuntimeError, match='have already been freed'):
            _ = loss.grad_fn.saved_tensors


def test_rejects_logits():
    with pytest.raises(
        TypeError, match=r'floating point dtype, got torch\.int'
    ):
        ResizedLogits(torch.zeros(1, 2, 3, 3, dtype=torch.int64), (3, 3))
    for shape in ((2, 3, 3), (1, 0, 3, 3), (1, 2, 0, 3)):
        with pytest.raises(ValueError, match=r'shape \(N, C, h, w\)'):
            ResizedLogits(torch.zeros(shape), (3, 3))
    for size in ((3,), (3, 3, 3), (0, 3)):
        with pytest.raises(ValueError, match=r'size must be \(H, W\)'):
            ResizedLogits(torch.zeros(1, 2, 3, 3), size)


@pytest.mark.parametrize('method', ['cross_entropy_sum', 'nll'])
def test_rejects_labels(method):
    label = torch.zeros(1, 4, 4, dtype=torch.int64)
    valid = label == 0
    loss = getattr(ResizedLogits(torch.zeros(1, 2, 2, 2), (4, 4)), method)
    for dtype in (torch.float32, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match='label must have an integer'):
            loss(label.to(dtype), valid)
    with pytest.raises(
        TypeError, match=r'valid must be bool, got torch\.int64'
    ):
        loss(label, label)
    with pytest.raises(ValueError, match=r'label must .* \(1, 4, 4\), got'):
        loss(label[:, :3], valid)
    with pytest.raises(ValueError, match=r'valid must .* \(1, 4, 4\), got'):
        loss(label, valid[None])
    with pytest.raises(ValueError, match=r'label must be on cpu .* got meta'):
        loss(label.to('meta'), valid)
    one = getattr(ResizedLogits(torch.zeros(1, 1, 2, 2), (4, 4)), method)
    with pytest.raises(ValueError, match='at least 2 classes, got 1'):
        one(label, valid)


def test_rejects_weights():
    label = torch.zeros(1, 4, 4, dtype=torch.int64)
    resized = ResizedLogits(torch.zeros(1, 2, 2, 2), (4, 4))

    def loss(**kwargs):
        return resized.cross_entropy_sum(label, label == 0, **kwargs)

    with pytest.raises(ValueError, match=r'class_weight .* \(2,\), got \(3'):
        loss(class_weight=torch.ones(3))
    with pytest.raises(ValueError, match=r'weight must .* \(1, 4, 4\), got'):
        loss(weight=torch.ones(4, 4))
    with pytest.raises(ValueError, match='class_weight must not require'):
        loss(class_weight=torch.ones(2, requires_grad=True))
    with pytest.raises(ValueError, match='weight must not require'):
        loss(weight=torch.ones(1, 4, 4, requires_grad=True))
    for smoothing in (-0.1, 1.1):
        with pytest.raises(ValueError, match=r'in \[0, 1\], got'):
            loss(label_smoothing=smoothing)


@both_engines
@pytest.mark.parametrize('size', [(4, 4), (7, 7), (12, 12)])
@pytest.mark.parametrize('fill', [-torch.inf, torch.finfo().min, -1e4])
def test_deep_negative_logits_of_other_classes(size, fill):
    """Also where PyTorch's resize gives NaN: a weight of 0 times -inf."""
    logits, label, valid = make(5, (4, 4), size, torch.float32)
    valid &= label < 3
    with torch.no_grad():
        logits[:, 3:] = fill
    kept = logits.detach()[:, :3].clone().requires_grad_()
    loss, hits = dense_loss(kept, label, valid, size, False)
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


@both_engines
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


@both_engines
def test_winners_far_apart():
    """No underflow where neighbours prefer classes by a large margin."""
    logits = torch.zeros(1, 3, 2, 2)
    logits[0, 0, 0] = logits[0, 1, 1] = 1e4
    label = torch.full((1, 7, 7), 2)
    logits.requires_grad_()
    loss, _ = dense_loss(logits, label, label == 2, (7, 7), False)
    (wanted,) = torch.autograd.grad(loss.sum(), logits)
    total = ResizedLogits(logits, (7, 7)).cross_entropy_sum(label, label == 2)
    (grad,) = torch.autograd.grad(total, logits)
    assert_same(total, loss.sum(), 1e-6)
    assert_same(grad, wanted, 1e-5)


@both_engines
def test_nan_is_not_hidden():
    logits, label, _ = make(3, (4, 4), (8, 8), torch.float32)
    with torch.no_grad():
        logits[0, 1, 2, 2] = torch.nan
    label = label.clamp(0, 2)
    resized = ResizedLogits(logits, (8, 8))
    total = resized.cross_entropy_sum(label, label >= 0)
    total.backward()
    assert total.isnan()
    assert logits.grad[0].isnan().any()
    assert logits.grad[1].isfinite().all()


@both_engines
def test_logits_that_are_all_minus_infinite():
    """NaN as in PyTorch, which is what a softmax of them is."""
    logits = torch.zeros(1, 3, 4, 4)
    logits[:, :, 0] = -torch.inf
    logits.requires_grad_()
    label = torch.zeros(1, 4, 4, dtype=torch.int64)
    resized = ResizedLogits(logits, (4, 4))
    resized.cross_entropy_sum(label, label == 0).backward()
    nll = resized.nll(label, label == 0)
    assert nll[:, 0].isnan().all()
    assert nll[:, 1:].isfinite().all()
    assert logits.grad[:, :, 0].isnan().all()


@both_engines
def test_of_equal_logits_the_first_counts():
    logits = torch.zeros(1, 4, 2, 2)
    logits[:, 0] = -1
    resized = ResizedLogits(logits, (4, 4))
    for label, hits in ((0, 0), (1, 16), (2, 0), (3, 0)):
        labels = torch.full((1, 4, 4), label)
        resized.cross_entropy_sum(labels, labels == label)
        assert resized.num_correct == hits
        assert resized.num_correct.dtype == torch.int64
