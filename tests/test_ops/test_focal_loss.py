"""Focal losses against the formulas: mmcv has no CPU kernel for them."""

import math

import pytest
import torch
import torch.nn.functional as F
from mmcv.ops import (
    SigmoidFocalLoss,
    SoftmaxFocalLoss,
    sigmoid_focal_loss,
    softmax_focal_loss,
)
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


@pytest.mark.parametrize('weight', [None, [0.5, 2.0, 1.0, 0.0]])
@pytest.mark.parametrize(('gamma', 'alpha'), OPTIONS)
def test_softmax_matches_formula(gamma, alpha, weight, device):
    logits = torch.randn(6, 4) * 3
    target = [0, 3, 1, 1, 2, 2] if weight else [0, 3, -1, 1, -100, 2]
    actual = values_and_grads(
        lambda input: softmax_focal_loss(
            input,
            torch.tensor(target, device=device),
            gamma,
            alpha,
            None if weight is None else torch.tensor(weight, device=device),
            'sum',
        ),
        {'input': logits.to(device)},
    )
    expected = values_and_grads(
        lambda input: slow_ops.softmax_focal(
            input, target, gamma=gamma, alpha=alpha, weight=weight
        ).sum(),
        {'input': logits},
    )
    assert_same(actual, expected)


def test_sigmoid_limit_is_cross_entropy():
    logits, target = torch.randn(5, 3), torch.tensor([0, 2, 3, 1, 1])
    onehot = F.one_hot(target, 4)[:, :3].float()
    loss = sigmoid_focal_loss(logits, target, 0.0, 0.5, None, 'none')
    expected = F.binary_cross_entropy_with_logits(
        logits, onehot, reduction='none'
    )
    torch.testing.assert_close(2 * loss, expected)


def test_softmax_limit_is_cross_entropy():
    logits, target = torch.randn(5, 3), torch.tensor([0, 2, 0, 1, 1])
    loss = SoftmaxFocalLoss(0.0, 1.0)(logits, target)
    torch.testing.assert_close(loss, F.cross_entropy(logits, target))


@pytest.mark.parametrize('gamma', [0.0, 0.5, 2.0])
def test_certain_predictions_stay_finite(gamma):
    logits = torch.tensor([[200.0, -200.0, 0.0], [-200.0, 200.0, 0.0]])
    target = torch.tensor([0, 0])
    for function in (sigmoid_focal_loss, softmax_focal_loss):
        found = values_and_grads(
            lambda input, function=function: function(
                input, target, gamma, 0.25, None, 'sum'
            ),
            {'input': logits},
        )
        assert found['output'].isfinite().all()
        assert found['input'].isfinite().all()
        # Only the second is wrong; its logarithm is clamped.
        assert found['output'] >= 0.25 * -math.log(1.2e-38)


@pytest.mark.parametrize('loss', [SigmoidFocalLoss, SoftmaxFocalLoss])
def test_no_samples(loss):
    found = values_and_grads(
        lambda input: loss(2.0, 0.25, reduction='sum')(
            input, torch.zeros(0, dtype=torch.long)
        ),
        {'input': torch.zeros(0, 4)},
    )
    assert found['output'] == 0
    assert found['input'].shape == (0, 4)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('function', [sigmoid_focal_loss, softmax_focal_loss])
def test_half(function, dtype, device):
    logits = (torch.randn(8, 5, device=device) * 3).to(dtype)
    target = torch.randint(5, (8,), device=device)
    half, full = (
        values_and_grads(
            lambda input: function(input, target, 2.0, 0.25, None, 'sum'),
            {'input': x},
        )
        for x in (logits, logits.float())
    )
    assert half['input'].dtype == dtype
    assert_same(half, full, rtol=3e-2, atol=3e-2)


def test_not_contiguous():
    logits, target = torch.randn(4, 6).t(), torch.randint(4, (12,))[::2]
    for function in (sigmoid_focal_loss, softmax_focal_loss):
        found = function(logits, target, 2.0, 0.25, None, 'sum')
        expected = function(
            logits.contiguous(), target.contiguous(), 2.0, 0.25, None, 'sum'
        )
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ('function', 'high'), [(sigmoid_focal_loss, 3), (softmax_focal_loss, 2)]
)
def test_rejects_labels_above_the_classes(function, high):
    target = torch.tensor([0, high, high + 1])
    with pytest.raises(
        ValueError, match=f'target must be at most {high} .*got {high + 1}'
    ):
        function(torch.zeros(3, 3), target)


@pytest.mark.parametrize('function', [sigmoid_focal_loss, softmax_focal_loss])
def test_rejects_labels_without_a_weight(function):
    with pytest.raises(
        ValueError, match=r'target must be in \[0, 3\).*got -1'
    ):
        function(
            torch.zeros(2, 3), torch.tensor([0, -1]), 2.0, 0.25, torch.ones(3)
        )


def test_rejects_background_where_weight_is_given():
    with pytest.raises(ValueError, match=r'target must be in \[0, 3\).*got 3'):
        sigmoid_focal_loss(
            torch.zeros(1, 3), torch.tensor([3]), 2.0, 0.25, torch.ones(3)
        )


@pytest.mark.parametrize('function', [sigmoid_focal_loss, softmax_focal_loss])
def test_gradcheck(function):
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    target, weight = torch.tensor([0, 2, 1, 1]), torch.rand(3).double()
    assert torch.autograd.gradcheck(
        lambda x: function(x, target, 1.5, 0.3, weight, 'sum'), (logits,)
    )
