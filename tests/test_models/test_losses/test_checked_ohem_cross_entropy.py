"""Hard examples: those of MMSegmentation, and its holes."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from mmseg.models.losses import OhemCrossEntropy

from mmext.models.losses import (
    CheckedOhemCrossEntropy,
    checked_ohem_cross_entropy,
)
from mmext.models.losses.checked_ohem_cross_entropy import (
    hardest,
    host_kth_smallest,
    kth_smallest,
)

WEIGHT = [0.5, 1.0, 2.0, 0.25, 3.0]


def data(*shape: int, dtype=torch.float64):
    pred = (3 * torch.randn(shape[0], 5, *shape[1:], dtype=dtype)).detach()
    label = torch.randint(0, 5, shape)
    label[torch.rand(shape) < 0.3] = 255
    return pred.requires_grad_(), label


def gradient(loss, pred):
    return torch.autograd.grad(loss, pred, retain_graph=True)[0]


@pytest.mark.parametrize('thres', [0.05, 0.5, 0.9, 1.0])
@pytest.mark.parametrize('min_kept', [1, 10, 150, 100000])
@pytest.mark.parametrize('weight', [None, WEIGHT])
def test_is_that_of_mmseg(thres, min_kept, weight):
    pred, label = data(2, 10, 12)
    options = {
        'thres': thres,
        'min_kept': min_kept,
        'class_weight': weight,
        'loss_weight': 0.4,
    }
    loss = CheckedOhemCrossEntropy(**options)(pred, label, ignore_index=255)
    expected = OhemCrossEntropy(**options)(pred, label)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient(loss, pred), gradient(expected, pred))


def reference(nll, valid, threshold, min_kept):
    """The rule, in plain Python."""
    p = {
        i: torch.exp(-nll[i]).item() for i in range(len(nll)) if bool(valid[i])
    }
    if not p:
        return [False] * len(nll)
    ranked = sorted(p.values())
    limit = max(threshold, ranked[min(min_kept, len(ranked) - 1)])
    kept = {i for i, value in p.items() if value < limit}
    kept = kept or {i for i, value in p.items() if value <= limit}
    return [i in kept for i in range(len(nll))]


@pytest.mark.parametrize('ties', [False, True])
@pytest.mark.parametrize('wait', [False, True])
def test_selection(ties, wait):
    """With and without the short cut that a CPU may take."""
    for seed, threshold, min_kept in itertools.product(
        range(4), (0.0, 0.3, 0.8, 1.0), (1, 5, 30, 99)
    ):
        torch.manual_seed(seed)
        nll = torch.rand(40, dtype=torch.float64) * 3
        if ties:
            nll = (nll * 2).round() / 2
        valid = torch.rand(40) < 0.5
        results = hardest(nll, valid, threshold, min_kept, wait=wait)
        assert results.tolist() == reference(nll, valid, threshold, min_kept)


def test_short_cut_does_not_search(monkeypatch):
    """No rank is looked for when enough pixels are hard."""
    for name in ('kth_smallest', 'host_kth_smallest'):
        monkeypatch.setattr(checked_ohem_cross_entropy, name, lambda *_: 1 / 0)
    nll = torch.full((10,), 2.0)
    assert hardest(nll, torch.ones(10, dtype=torch.bool), 0.9, 5).all()


@pytest.mark.parametrize('bad', [1, 8])
@pytest.mark.parametrize('deferred', [None, True])
def test_nan_is_not_left_out(bad, deferred):
    """A loss of the other pixels would hide that the network diverged."""
    pred = torch.randn(1, 3, 8)
    pred[0, :, :bad] = torch.nan
    module = CheckedOhemCrossEntropy(min_kept=2)
    module.label_range.deferred = deferred
    assert module(pred, torch.zeros(1, 8).long()).isnan()


def test_gradcheck():
    pred, label = data(1, 4, 5)
    module = CheckedOhemCrossEntropy(min_kept=6, class_weight=WEIGHT)
    assert torch.autograd.gradcheck(lambda x: module(x, label), pred)


class TestWhereMMSegIsNotFinite:
    def test_one_confident_pixel(self):
        pred = torch.tensor([[9.0, 0.0]]).view(1, 2, 1, 1).requires_grad_()
        label = torch.zeros(1, 1, 1, dtype=torch.long)
        assert OhemCrossEntropy()(pred, label).isnan()
        loss = CheckedOhemCrossEntropy()(pred, label, ignore_index=255)
        torch.testing.assert_close(loss, F.cross_entropy(pred, label))
        assert gradient(loss, pred).abs().sum() > 0

    def test_saturated_softmax(self):
        pred = torch.zeros(1, 2, 4, 4)
        pred[:, 0] = 200
        pred.requires_grad_()
        label = torch.zeros(1, 4, 4, dtype=torch.long)
        assert OhemCrossEntropy()(pred, label).isnan()
        loss = CheckedOhemCrossEntropy()(pred, label)
        assert loss == 0
        assert gradient(loss, pred).isfinite().all()


def test_ignores_what_the_head_ignores():
    pred, label = data(2, 6, 5)
    module = CheckedOhemCrossEntropy(min_kept=7)
    other = label.masked_fill(label == 255, -1)
    torch.testing.assert_close(
        module(pred, other, ignore_index=-1), module(pred, label)
    )
    assert CheckedOhemCrossEntropy(ignore_label=3).ignored(None) == 3
    assert module.ignored(None) == 255


def test_rejects_two_values_to_ignore():
    module = CheckedOhemCrossEntropy(ignore_label=255)
    with pytest.raises(ValueError, match=r'ignore_label=255 .*index=11'):
        module(torch.zeros(1, 3, 2), torch.zeros(1, 2).long(), None, 11)


def test_pixel_weight_multiplies_selected_losses():
    pred, label = data(2, 6, 5)
    weight = torch.full((2, 6, 5), 2.0)
    module = CheckedOhemCrossEntropy(min_kept=9)
    torch.testing.assert_close(
        module(pred, label, weight), 2 * module(pred, label)
    )


def test_rejects():
    with pytest.raises(ValueError, match=r'thres must be .* got 1\.5'):
        CheckedOhemCrossEntropy(thres=1.5)
    with pytest.raises(ValueError, match=r'min_kept must be .* got -1'):
        CheckedOhemCrossEntropy(min_kept=-1)
    with pytest.raises(ValueError, match='each of 3 classes, got 5'):
        CheckedOhemCrossEntropy(class_weight=WEIGHT)(
            torch.zeros(1, 3, 2), torch.zeros(1, 2).long()
        )
    with pytest.raises(ValueError, match='label must have the shape'):
        CheckedOhemCrossEntropy()(torch.zeros(1, 3, 2), torch.zeros(1).long())


BOTH = pytest.mark.parametrize('search', [kth_smallest, host_kth_smallest])


@BOTH
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_matches_sort(dtype, search):
    values = torch.rand(501, dtype=dtype)
    values[::7] = values[3]
    values[::11] = 0
    values[::13] = torch.inf
    values[5] = torch.finfo(dtype).tiny / 2
    expected = values.sort().values
    for index in (0, 1, 17, 250, 460, 500):
        match = search(values.view(3, 167), torch.tensor(index))
        assert match.shape == ()
        assert match == expected[index]
        assert match.dtype == dtype
