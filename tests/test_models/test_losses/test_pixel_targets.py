"""Factors of the loss of each pixel against PyTorch's cross-entropy."""

import pytest
import torch
from torch.nn import functional as F

from mmext.models.losses._pixel_targets import (
    FLOOR,
    LN_2,
    PixelTargets,
    binary_logits,
)


def loss_of(terms, share, z) -> torch.Tensor:
    """The formula of the module, for logits ``(C, P)``."""
    log_sum = z.logsumexp(0)
    loss = terms.total * log_sum
    loss = loss - terms.hard * z.gather(0, terms.target[None])[0]
    if share is not None:
        loss = loss - (terms.total - terms.hard) * (share @ z)
    return loss


@pytest.mark.parametrize('smoothing', [0.0, 0.1, 1.0])
@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('dtype', [torch.uint8, torch.int32, torch.int64])
def test_formula_matches_torch(smoothing, weighted, dtype):
    z = torch.randn(5, 40, dtype=torch.float64)
    label = torch.randint(0, 5, (1, 1, 40))
    valid = torch.rand(1, 1, 40) > 0.3
    class_weight = torch.rand(5, dtype=torch.float64) if weighted else None
    wanted = F.cross_entropy(
        z.t(),
        label.masked_fill(~valid, 255).flatten(),
        class_weight,
        ignore_index=255,
        reduction='none',
        label_smoothing=smoothing,
    )
    garbage = label.masked_fill(~valid, 200).to(dtype)
    targets = PixelTargets(
        garbage,
        valid,
        5,
        torch.float64,
        class_weight,
        label_smoothing=smoothing,
    )
    terms = targets.terms(0, slice(None))
    terms = type(terms)(terms.target[0], terms.total[0], terms.hard[0])
    found = loss_of(terms, targets.share(), z)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)


def test_what_is_not_valid_is_not_read():
    label = torch.tensor([[[1, 10**6, -7]]])
    valid = torch.tensor([[[True, False, False]]])
    weight = torch.tensor([[[2.0, float('nan'), float('inf')]]])
    given = label.clone()
    targets = PixelTargets(
        label, valid, 3, torch.float32, torch.ones(3), weight, 0.5
    )
    terms = targets.terms(0, slice(None))
    assert terms.target.tolist() == [[1, 0, 0]]
    assert terms.hard.tolist() == [[1, 0, 0]]
    assert terms.total.tolist() == [[2, 0, 0]]
    assert torch.equal(label, given)


def test_share_of_weights_that_are_all_zero():
    label = torch.zeros(1, 1, 1, dtype=torch.int64)
    targets = PixelTargets(
        label, label == 0, 2, torch.float32, torch.zeros(2), None, 0.1
    )
    assert targets.share().tolist() == [0, 0]


@pytest.mark.parametrize('dtype', [torch.float16, torch.float32])
def test_binary_logits_have_the_same_softmax(dtype):
    logits = (torch.randn(2, 5, 3, 3) * 20 + 100).to(dtype)
    logits[0, 1] = -torch.inf
    found = binary_logits(logits, torch.float32, 1)
    assert found.max() == 0
    assert found[0, 1].eq(FLOOR).all()
    torch.testing.assert_close(
        (found * LN_2).softmax(1), logits.float().softmax(1)
    )
