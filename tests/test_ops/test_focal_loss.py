"""The focal loss against its formula: mmcv has no CPU kernel for it."""

import math

import pytest
import torch
from mmcv.ops import SigmoidFocalLoss, sigmoid_focal_loss
from reference import slow_ops
from reference.op_checks import assert_same, values_and_grads

OPTIONS = [(2.0, 0.25), (0.0, 0.5), (0.5, 0.9), (1.0, 1.0)]


@pytest.mark.parametrize('weight', [None, [0.5, 2.0, 1.0, 0.0]])
@pytest.mark.parametrize(('gamma', 'alpha'), OPTIONS)
def test_sigmoid_matches_formula(gamma, alpha, weight, device):
    logits = torch.randn(6, 4) * 3
    # 4 and -1 are no class: with weights the compiled op reads past its end.
    target = [0, 3, 1, 1, 2, 2] if weight else [0, 3, 4, 1, -1, 2]
    actual = values_and_grads(
        lambda input: sigmoid_focal_loss(
            input,
            torch.tensor(target, device=device),
            gamma,
            alpha,
            None if weight is None else torch.tensor(weight, device=device),
            'none',
        ),
        {'input': logits.to(device)},
    )
    expected = values_and_grads(
        lambda input: slow_ops.sigmoid_focal(
            input, target, gamma=gamma, alpha=alpha, weight=weight
        ),
        {'input': logits},
    )
    assert_same(actual, expected)


@pytest.mark.parametrize('gamma', [0.0, 0.5, 2.0])
def test_certain_predictions_stay_finite(gamma):
    logits = torch.tensor([[200.0, -200.0, 0.0], [-200.0, 200.0, 0.0]])
    target = torch.tensor([0, 0])
    actual = values_and_grads(
        lambda input: sigmoid_focal_loss(
            input, target, gamma, 0.25, None, 'sum'
        ),
        {'input': logits},
    )
    assert actual['output'].isfinite().all()
    assert actual['input'].isfinite().all()
    # Only the second is wrong; its logarithm is clamped.
    assert actual['output'] >= 0.25 * -math.log(1.2e-38)


def test_no_samples():
    actual = values_and_grads(
        lambda input: SigmoidFocalLoss(2.0, 0.25, reduction='sum')(
            input, torch.zeros(0, dtype=torch.long)
        ),
        {'input': torch.zeros(0, 4)},
    )
    assert actual['output'] == 0
    assert actual['input'].shape == (0, 4)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half(dtype, device):
    logits = (torch.randn(8, 5, device=device) * 3).to(dtype)
    target = torch.randint(5, (8,), device=device)
    half, full = (
        values_and_grads(
            lambda input: sigmoid_focal_loss(
                input, target, 2.0, 0.25, None, 'sum'
            ),
            {'input': x},
        )
        for x in (logits, logits.float())
    )
    assert half['input'].dtype == dtype
    assert_same(half, full, rtol=3e-2, atol=3e-2)


def test_not_contiguous():
    logits, target = torch.randn(4, 6).t(), torch.randint(4, (12,))[::2]
    actual = sigmoid_focal_loss(logits, target, 2.0, 0.25, None, 'sum')
    expected = sigmoid_focal_loss(
        logits.contiguous(), target.contiguous(), 2.0, 0.25, None, 'sum'
    )
    assert torch.equal(actual, expected)


@pytest.mark.parametrize(
    ('labels', 'weight', 'message'),
    [
        ([0, 3, 4], None, r'target must be at most 3, .*got 4 at index 2'),
        ([-1, 0, 0], torch.ones(3), r'target must be in \[0, 3\).*got -1'),
        ([3, 0, 0], torch.ones(3), r'target must be in \[0, 3\).*got 3'),
    ],
)
def test_rejects(labels, weight, message):
    with pytest.raises(ValueError, match=message):
        sigmoid_focal_loss(
            torch.zeros(3, 3), torch.tensor(labels), 2.0, 0.25, weight
        )
