"""The registered loss against the losses that it takes the place of."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from mmdet.models.losses import CrossEntropyLoss as MMDetLoss
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import DefaultScope
from mmseg.models.losses import CrossEntropyLoss as MMSegLoss

from mmext.models.losses import (
    CheckedCrossEntropyLoss,
    LabelRangeError,
    ResizedLogits,
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
    loss = CheckedCrossEntropyLoss(**options)(pred, label, ignore_index=255)
    expected = host(MMSegLoss, **options)(pred, label, ignore_index=255)
    assert_same(loss, expected, pred)


@pytest.mark.parametrize('options', OPTIONS)
def test_is_that_of_mmseg_with_pixel_weights(options):
    pred, label = data(2, 4, 6)
    weight = torch.rand(2, 4, 6)
    loss, expected = (
        module(pred, label, weight, ignore_index=255)
        for module in (
            CheckedCrossEntropyLoss(**options),
            host(MMSegLoss, **options),
        )
    )
    assert_same(loss, expected, pred)


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


def test_weights_are_those_of_mmseg_without_ignored_pixels():
    pred, label = data(2, 4, 6, ignore=None)
    for flag in (False, True):
        options = {'class_weight': WEIGHT, 'avg_non_ignore': flag}
        loss = CheckedCrossEntropyLoss(**options)(
            pred, label, ignore_index=255
        )
        expected = F.cross_entropy(pred, label, torch.tensor(WEIGHT).double())
        assert_same(loss, expected, pred)
    options['avg_non_ignore'] = False
    theirs = host(MMSegLoss, **options)(pred, label, ignore_index=255)
    assert_same(loss, theirs, pred)


def test_weights_with_ignored_pixels():
    """Where MMSegmentation's crashes, or forgets what is ignored."""
    pred, label = data(2, 4, 6)
    loss = CheckedCrossEntropyLoss(class_weight=WEIGHT, avg_non_ignore=True)
    expected = F.cross_entropy(
        pred, label, torch.tensor(WEIGHT).double(), ignore_index=255
    )
    assert_same(loss(pred, label, ignore_index=255), expected, pred)
    with pytest.raises(IndexError):
        host(MMSegLoss, class_weight=WEIGHT, avg_non_ignore=True)(
            pred, label, ignore_index=255
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


def test_numel_is_the_weighted_mean_of_old_mmseg():
    """Up to 1.1: F.cross_entropy of each pixel, then the plain mean."""
    pred, label = data(2, 4, 6)
    each = F.cross_entropy(
        pred,
        label,
        torch.tensor(WEIGHT).double(),
        ignore_index=255,
        reduction='none',
    )
    loss = CheckedCrossEntropyLoss(class_weight=WEIGHT, denominator='numel')
    assert_same(loss(pred, label, ignore_index=255), each.mean(), pred)


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


def test_class_weight_of_a_file(tmp_path):
    (tmp_path / 'weights.json').write_text(str(WEIGHT))
    loss = CheckedCrossEntropyLoss(class_weight=str(tmp_path / 'weights.json'))
    assert loss.class_weight.tolist() == WEIGHT


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


def test_smoothing_and_soft_labels():
    pred, _ = data(2, 4, 6)
    target = torch.rand_like(pred).softmax(1)
    loss = CheckedCrossEntropyLoss(label_smoothing=0.1)(pred, target)
    expected = F.cross_entropy(pred, target, label_smoothing=0.1)
    assert_same(loss, expected, pred)


@pytest.mark.parametrize('soft', [False, True])
def test_takes_low_resolution_logits(soft):
    small = torch.randn(2, 5, 3, 4, dtype=torch.float64, requires_grad=True)
    size = (9, 10)
    full = F.interpolate(small, size, mode='bilinear')
    label = torch.randint(0, 5, (2, *size))
    if soft:
        label = F.one_hot(label, 5).movedim(-1, 1).double()
    module = CheckedCrossEntropyLoss(class_weight=WEIGHT, loss_weight=3.0)
    assert module.can_resize
    loss = module(ResizedLogits(small, size), label)
    assert_same(loss, module(full, label), small)
    each = module(ResizedLogits(small, size), label, reduction_override='none')
    assert each.shape == (2, *size)


def test_what_cannot_resize():
    for options in (
        {'use_sigmoid': True},
        {'use_mask': True},
        {'reduction': 'none'},
    ):
        assert not CheckedCrossEntropyLoss(**options).can_resize


def test_names_itself_in_errors():
    module = CheckedCrossEntropyLoss(loss_name='loss_aux')
    with pytest.raises(LabelRangeError, match=r'^loss_aux: 1 labels'):
        module(torch.zeros(2, 3), torch.tensor([1, 3]))
    assert module.loss_name == 'loss_aux'


def test_builds_under_any_scope():
    for scope in ('mmseg', 'mmdet'):
        with DefaultScope.overwrite_default_scope(scope):
            built = ROOT_MODELS.build(
                {'type': 'mmext.CheckedCrossEntropyLoss', 'loss_weight': 2.0}
            )
        assert isinstance(built, CheckedCrossEntropyLoss)
        assert 'denominator' in repr(built)


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


def test_rejects_a_missing_file():
    with pytest.raises(FileNotFoundError, match='nowhere'):
        CheckedCrossEntropyLoss(class_weight='nowhere.npy')


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
