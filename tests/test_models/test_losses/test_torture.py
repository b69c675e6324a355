"""Random label maps with random wrong values, through every loss.

Never an error other than ``LabelRangeError``, never a loss or a gradient
that is not finite, never a label that is used as an index out of range.
"""

import random

import pytest
import torch

from mmext.models.losses import (
    CheckedBoundaryLoss,
    CheckedCrossEntropyLoss,
    CheckedOhemCrossEntropy,
    LabelRangeError,
    ResizedLogits,
)

LABELS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
LOGITS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ODD = (-1, -100, 1, 2, 11, 18, 19, 33, 127, 128, 200, 254, 255)
HUGE = (-(2**62), -(2**31), 2**31, 2**62)
NUM_CLASSES = 5


def out_of_range(label, num_classes, ignore):
    label = label.long()
    wrong = (label < 0) | (label >= num_classes)
    return wrong if ignore is None else wrong & (label != ignore)


def random_label(dtype: torch.dtype, shape: tuple) -> torch.Tensor:
    """Mostly classes; some odd, some huge, sometimes nothing else."""
    label = torch.randint(0, NUM_CLASSES, shape)
    odd = torch.tensor(random.choices(ODD + HUGE, k=label.numel()))
    share = random.choice((0.0, 0.02, 0.5, 1.0))
    label = torch.where(torch.rand(shape) < share, odd.view(shape), label)
    limits = torch.iinfo(dtype)
    return label.clamp(limits.min, limits.max).to(dtype)


def random_loss(policy: str) -> torch.nn.Module:
    weight = random.choice((None, [0.5, 0.0, 2.0, 1.0, 3.0]))
    kind = random.choice(('softmax', 'sigmoid', 'ohem'))
    if kind == 'ohem':
        return CheckedOhemCrossEntropy(
            thres=random.random(),
            min_kept=random.choice((1, 20, 10**6)),
            class_weight=weight,
            out_of_range=policy,
        )
    denominators = ['auto', 'numel', 'valid', 'weight_sum']
    return CheckedCrossEntropyLoss(
        use_sigmoid=kind == 'sigmoid',
        class_weight=weight,
        reduction=random.choice(('mean', 'sum', 'none')),
        avg_non_ignore=random.random() < 0.5,
        label_smoothing=random.choice((0.0, 0.1)),
        denominator=random.choice(denominators[: 3 if kind[1] == 'i' else 4]),
        out_of_range=policy,
    )


def one_case(seed: int) -> bool:
    """One random case; whether its labels were in range."""
    random.seed(seed)
    torch.manual_seed(seed)
    policy = random.choice(('raise', 'ignore'))
    loss = random_loss(policy)
    size = (random.randint(1, 9), random.randint(1, 9))
    shape = random.choice(((2, *size), (1, *size), (7,)))
    dtype = random.choice(LABELS)
    label = random_label(dtype, shape)
    ignore = random.choice((255, -100, 2, -1, 11))
    loss.label_range.deferred = random.random() < 0.5
    resize = len(shape) == 3 and getattr(loss, 'can_resize', False)
    small = (
        (shape[0], NUM_CLASSES, 3, 4)
        if resize
        else (
            shape[0],
            NUM_CLASSES,
            *shape[1:],
        )
    )
    pred = (random.choice((1, 30)) * torch.randn(small)).to(
        random.choice(LOGITS)
    )
    pred.requires_grad_()
    score = pred
    if resize:
        score = ResizedLogits(pred, size, random.random() < 0.5)
    bad = bool(out_of_range(label, NUM_CLASSES, ignore).any())
    background = getattr(loss, 'use_sigmoid', False) and len(shape) == 1
    if background:
        bad = bool(out_of_range(label, NUM_CLASSES + 1, ignore).any())
    before = label.clone()
    report = None
    try:
        value = loss(score, label, ignore_index=ignore)
        value.sum().backward()
        assert value.isfinite().all(), seed
        assert pred.grad.isfinite().all(), seed
        loss.label_range.poll(wait=True)
    except LabelRangeError as error:
        report = error.report
    assert (report is not None) == (bad and policy == 'raise'), seed
    if report is not None:
        wrong = out_of_range(label, NUM_CLASSES + background, ignore)
        assert report.num_bad == int(wrong.sum()), seed
    assert torch.equal(label, before)
    return not bad


def test_random_cases():
    clean = [one_case(seed) for seed in range(600)]
    assert 60 < sum(clean) < 540


@pytest.mark.parametrize('dtype', LOGITS)
@pytest.mark.parametrize('policy', ['raise', 'ignore'])
def test_random_edges(dtype, policy):
    for seed in range(40):
        random.seed(seed)
        torch.manual_seed(seed)
        pred = torch.randn(2, 1, 5, 6).to(dtype).requires_grad_()
        edges = random_label(random.choice(LABELS), (2, 5, 6))
        loss = CheckedBoundaryLoss(out_of_range=policy)
        loss.label_range.deferred = seed % 2 == 0
        try:
            value = loss(pred, edges)
            value.backward()
            assert value.isfinite()
            assert pred.grad.isfinite().all()
            loss.label_range.poll()
        except LabelRangeError:
            assert policy == 'raise'
