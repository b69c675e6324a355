"""The registered loss against the losses that it takes the place of."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from mmdet.models.losses import CrossEntropyLoss as MMDetLoss
from mmseg.models.losses import CrossEntropyLoss as MMSegLoss

from mmext.models.losses import (
    CheckedCrossEntropyLoss,
)
from mmext.models.losses.checked_cross_entropy import (
    checked_cross_entropy,
)

WEIGHT = [0.5, 1.0, 2.0, 0.25, 3.0]


def host(kind: type, **options) -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # on avg_non_ignore, at every use
        return kind(**options)


def data(*shape: int, ignore: int | None = 255):
    pred = torch.randn(
        shape[0], 5, *shape[1:], dtype=torch.float64, requires_grad=True
    )
    label = torch.randint(0, 5, shape)
    if ignore is not None:
        label[torch.rand(shape) < 0.4] = ignore
    return pred, label


def assert_same(loss, expected, pred) -> None:
    # The hosts add a tiny number to denominators, or count in float32.
    # MMDetection's sigmoid loss is float32 whatever the logits are.
    torch.testing.assert_close(
        loss, expected, rtol=1e-6, atol=1e-9, check_dtype=False
    )
    torch.testing.assert_close(
        torch.autograd.grad(loss.sum(), pred, retain_graph=True)[0],
        torch.autograd.grad(expected.sum(), pred, retain_graph=True)[0],
        rtol=1e-6,
        atol=1e-9,
    )


OPTIONS = [
    {},
    {'avg_non_ignore': True},
    {'reduction': 'sum'},
    {'reduction': 'none'},
    {'use_sigmoid': True},
    {'use_sigmoid': True, 'avg_non_ignore': True},
    {'loss_weight': 0.4},
]


@pytest.mark.parametrize('options', OPTIONS)
def test_is_that_of_mmseg(options):
    pred, label = data(2, 4, 6)
    ours, theirs = CheckedCrossEntropyLoss, MMSegLoss
    for weight in ((), (torch.rand(2, 4, 6),)):
        assert_same(
            ours(**options)(pred, label, *weight, ignore_index=255),
            host(theirs, **options)(pred, label, *weight, ignore_index=255),
            pred,
        )


@pytest.mark.parametrize('options', OPTIONS)
@pytest.mark.parametrize('weighted', [False, True])
def test_is_that_of_mmdet(options, weighted):
    pred, label = data(40, ignore=7)
    options = {'ignore_index': 7, **options}
    if weighted and not options.get('use_sigmoid'):
        options['class_weight'] = WEIGHT
    weight = torch.rand(40)
    ours, theirs = CheckedCrossEntropyLoss, MMDetLoss
    for arguments in ((), (weight,)):
        assert_same(
            ours(**options)(pred, label, *arguments),
            host(theirs, **options)(pred, label, *arguments),
            pred,
        )
    if options.get('reduction') != 'sum':
        for factor in (13, torch.tensor(13.0)):
            assert_same(
                ours(**options)(pred, label, weight, factor),
                host(theirs, **options)(pred, label, weight, factor),
                pred,
            )


def test_denominators():
    pred, label = data(2, 4, 6)
    known = label != 255
    weight = torch.tensor(WEIGHT).double()
    total = F.cross_entropy(
        pred, label, weight, ignore_index=255, reduction='sum'
    )
    for name, count in {
        'numel': label.numel(),
        'valid': known.sum(),
        'weight_sum': weight[label[known]].sum(),
        'auto': weight[label[known]].sum(),
    }.items():
        loss = CheckedCrossEntropyLoss(class_weight=WEIGHT, denominator=name)
        assert_same(loss(pred, label, ignore_index=255), total / count, pred)


def test_masks_are_those_of_mmdet():
    pred = torch.randn(6, 5, 7, 7, dtype=torch.float64, requires_grad=True)
    target = torch.rand(6, 7, 7, dtype=torch.float64)
    label = torch.randint(0, 5, (6,))
    loss, expected = (
        module(pred, target, label)
        for module in (
            CheckedCrossEntropyLoss(use_mask=True, loss_weight=2.0),
            host(MMDetLoss, use_mask=True, loss_weight=2.0),
        )
    )
    assert loss.shape == expected.shape == (1,)
    assert_same(loss, expected, pred)


def test_class_weight_stays_out_of_checkpoints():
    loss = CheckedCrossEntropyLoss(class_weight=WEIGHT)
    assert loss.state_dict() == {}
    assert loss.class_weight.tolist() == WEIGHT
    assert loss.class_weight.dtype == torch.float32


def test_ignore_index_of_call_constructor_default():
    pred, label = data(3, 9, ignore=4)
    for module, options in (
        (CheckedCrossEntropyLoss(ignore_index=2), {'ignore_index': 4}),
        (CheckedCrossEntropyLoss(ignore_index=4), {}),
    ):
        loss = module(pred, label, **options)
        expected = F.cross_entropy(
            pred, label, ignore_index=4, reduction='sum'
        )
        assert_same(loss, expected / label.numel(), pred)
    label[0, 0] = -100
    CheckedCrossEntropyLoss()(pred, label)


def test_what_can_resize():
    assert CheckedCrossEntropyLoss().can_resize
    for options in (
        {'use_sigmoid': True},
        {'use_mask': True},
        {'reduction': 'none'},
    ):
        assert not CheckedCrossEntropyLoss(**options).can_resize


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'use_sigmoid': True, 'use_mask': True}, 'must not both be True'),
        ({'reduction': 'max'}, "got 'max'"),
        ({'denominator': 'pixels'}, "got 'pixels'"),
        ({'denominator': 'weight_sum', 'use_sigmoid': True}, 'for softmax'),
        ({'label_smoothing': 2}, 'label_smoothing'),
        ({'use_mask': True, 'reduction': 'sum'}, 'use_mask=True needs'),
        ({'out_of_range': 'clamp'}, "got 'clamp'"),
        ({'class_weight': [-1.0]}, 'class_weight must be finite'),
    ],
)
def test_rejects_options(options, message):
    with pytest.raises(ValueError, match=message):
        CheckedCrossEntropyLoss(**options)


def test_rejects_calls():
    mask = CheckedCrossEntropyLoss(use_mask=True)
    with pytest.raises(ValueError, match=r'takes \(pred, target, label\)'):
        mask(torch.zeros(1, 2, 3, 3), torch.zeros(1, 3, 3))
    with pytest.raises(TypeError, match='integer dtype'):
        CheckedCrossEntropyLoss(use_sigmoid=True)(
            torch.zeros(2, 3), torch.zeros(2)
        )
    with pytest.raises(ValueError, match='soft labels must have the shape'):
        CheckedCrossEntropyLoss()(torch.zeros(2, 3), torch.zeros(2))


SHAPES = [(7,), (2, 5), (2, 5, 3), (1, 3, 4, 2)]


def make(
    num_classes: int, shape: tuple, ignore: int, dtype=torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that need a gradient, labels of which a third is ignored."""
    pred = torch.randn(shape[0], num_classes, *shape[1:], dtype=dtype) * 3
    label = torch.randint(0, num_classes, shape)
    label[torch.rand(shape) < 0.3] = ignore
    label.view(-1)[0] = 0
    return pred.requires_grad_(), label


def gradient(loss: torch.Tensor, pred: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, pred, retain_graph=True)[0]


@pytest.mark.parametrize('num_classes', [2, 19, 150])
@pytest.mark.parametrize('ignore', [255, 1, -100, -1])
@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('smoothing', [0.0, 0.1, 1.0])
def test_matches_torch(num_classes, ignore, weighted, smoothing):
    for shape in SHAPES:
        pred, label = make(num_classes, shape, ignore)
        weight = torch.rand(num_classes) + 0.1 if weighted else None
        loss = checked_cross_entropy(
            pred,
            label,
            class_weight=weight,
            ignore_index=ignore,
            denominator='weight_sum',
            label_smoothing=smoothing,
        )
        expected = F.cross_entropy(
            pred,
            label,
            weight=weight.double() if weighted else None,
            ignore_index=ignore,
            label_smoothing=smoothing,
        )
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(
            gradient(loss, pred),
            gradient(expected, pred),
            rtol=1e-11,
            atol=1e-15,
        )


def test_element_weight_multiplies_the_numerator():
    pred, label = make(4, (2, 3, 3), 255)
    weight = torch.rand(2, 3, 3)
    weight[label == 255] = torch.inf
    item = F.cross_entropy(pred, label, ignore_index=255, reduction='none')
    known = label != 255
    loss = checked_cross_entropy(pred, label, weight, ignore_index=255)
    expected = (item[known] * weight[known]).sum() / known.sum()
    torch.testing.assert_close(loss, expected)
    assert gradient(loss, pred).isfinite().all()


def test_minus_infinity_of_another_class():
    pred, label = make(4, (6,), 255)
    with torch.no_grad():
        pred[:, 3] = -torch.inf
    label[label == 3] = 0
    loss = checked_cross_entropy(pred, label, ignore_index=255)
    expected = F.cross_entropy(pred, label, ignore_index=255)
    torch.testing.assert_close(loss, expected)
    assert gradient(loss, pred).isfinite().all()


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
@pytest.mark.parametrize('weighted', [False, True])
def test_soft_labels_match_torch(smoothing, weighted):
    pred = torch.randn(2, 5, 3, 4, dtype=torch.float64, requires_grad=True)
    target = torch.rand_like(pred).softmax(1)
    weight = torch.rand(5).double() if weighted else None
    loss = checked_cross_entropy(
        pred,
        target,
        class_weight=weight,
        denominator='numel',
        label_smoothing=smoothing,
    )
    expected = F.cross_entropy(pred, target, weight, label_smoothing=smoothing)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient(loss, pred), gradient(expected, pred))


def test_one_hot_soft_labels_are_hard_ones():
    pred, label = make(5, (2, 3, 4), 255)
    known = label != 255
    hot = F.one_hot(label.where(known, torch.tensor(0)), 5).double()
    target = hot.movedim(-1, 1).masked_fill(~known.unsqueeze(1), 255)
    weight = torch.rand(5)
    for denominator in ('numel', 'valid', 'weight_sum'):
        hard, soft = (
            checked_cross_entropy(
                pred,
                item,
                class_weight=weight,
                ignore_index=255,
                denominator=denominator,
            )
            for item in (label, target)
        )
        torch.testing.assert_close(hard, soft)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'label': torch.zeros(2, 4).long()}, r'got \(2, 4\) for pred'),
        ({'pred': torch.zeros(2, 1, 3)}, 'use_sigmoid=True'),
        ({'pred': torch.zeros(6)}, 'label must have the shape'),
        ({'weight': torch.zeros(2)}, 'weight must have the shape of label'),
        ({'class_weight': torch.ones(5)}, 'each of 4 classes, got 5'),
        ({'reduction': 'max'}, "reduction must be .* got 'max'"),
        ({'reduction': 'sum', 'avg_factor': 2}, 'avg_factor must be None'),
        ({'label_smoothing': 1.5}, r'label_smoothing .* got 1\.5'),
    ],
)
def test_rejects(change, message):
    given = {
        'pred': torch.zeros(2, 4, 3),
        'label': torch.zeros(2, 3).long(),
        **change,
    }
    with pytest.raises(ValueError, match=message):
        checked_cross_entropy(**given)
