"""Means, sums, and nothing divided by nothing."""

import pytest
import torch

from mmext.models.losses._reduction import (
    check_denominator,
    check_reduction,
    divide,
    mean_of_sum,
    reduce_losses,
)

LOSSES = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


def test_divide():
    assert divide(LOSSES.sum(), 3) == 2
    assert divide(LOSSES.sum(), torch.tensor(4)) == 1.5
    assert divide(torch.zeros(()), 0) == 0
    assert divide(torch.zeros(()), torch.tensor(0)) == 0


def test_reduce():
    assert reduce_losses(LOSSES, 'none', None, 3) is LOSSES
    assert reduce_losses(LOSSES, 'none', 7, 3) is LOSSES
    assert reduce_losses(LOSSES, 'sum', None, 3) == 6
    assert reduce_losses(LOSSES, 'mean', None, 2) == 3


def test_avg_factor_is_used_as_the_hosts_do():
    eps = torch.finfo(torch.float32).eps
    assert mean_of_sum(LOSSES.sum(), 4, 1) == 6 / (4 + eps)
    factor = torch.tensor(4.0, dtype=torch.float64)
    assert mean_of_sum(LOSSES.sum(), factor, 1) == 6 / (4 + eps)
    assert mean_of_sum(torch.zeros(()), 0, 1) == 0


def test_rejects():
    with pytest.raises(ValueError, match="'none', 'mean' or 'sum', got 'max'"):
        check_reduction('max', None)
    with pytest.raises(ValueError, match="must be None with reduction='sum'"):
        check_reduction('sum', 3)
    check_reduction('none', 3)


def test_denominators():
    assert check_denominator('weight_sum') is None
    assert check_denominator('valid', sigmoid=True) is None
    with pytest.raises(ValueError, match=r"must be one of .*got 'even'"):
        check_denominator('even')
    with pytest.raises(ValueError, match="'numel' or 'valid' for sigmoid"):
        check_denominator('weight_sum', sigmoid=True)
