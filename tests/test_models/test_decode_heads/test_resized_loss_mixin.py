"""The mixin: MMSegmentation's losses, and when it falls back."""

import weakref

import pytest
import torch
from helpers.device import device_waits, needs_device
from helpers.tiny_segmentation import make_pair, make_samples, same_step, step
from mmseg.models.decode_heads import EncHead, FCNHead, PointHead
from torch import nn

from mmext.models import decode_heads
from mmext.models.decode_heads import ResizedLossMixin, heads
from mmext.models.losses import LabelRangeError, ResizedLogits

CE = {'type': 'mmext.CheckedCrossEntropyLoss'}
OHEM = {'type': 'mmext.CheckedOhemCrossEntropy', 'min_kept': 50}
THEIRS = {'type': 'mmseg.CrossEntropyLoss'}
FCN = {'in_channels': 4, 'channels': 4, 'num_convs': 1, 'in_index': 0}


def features(size=(6, 8)):
    return [torch.randn(2, 4, *size)]


@pytest.fixture
def said(monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(
        heads,
        'print_log',
        lambda text, *_: lines.append(text),
    )
    return lines


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('ignore', [255, -1, 2])
@pytest.mark.parametrize('flag', [False, True])
def test_losses_are_those_of_mmseg(align_corners, ignore, flag, said):
    options = {'align_corners': align_corners, 'ignore_index': ignore, **FCN}
    theirs, ours = make_pair(
        'FCNHead',
        {**CE, 'avg_non_ignore': flag},
        {**THEIRS, 'avg_non_ignore': flag},
        **options,
    )
    losses = same_step(theirs, ours, features(), make_samples(ignore=ignore))
    assert losses['acc_seg'].shape == (1,)
    assert said == []


def test_nothing_of_full_resolution_is_made(monkeypatch):
    monkeypatch.setattr(ResizedLogits, 'dense', lambda _: 1 / 0)
    _, ours = make_pair('FCNHead', [CE, OHEM], THEIRS, **FCN)
    losses, _ = step(ours, features(), make_samples())
    assert set(losses) == {'loss_ce', 'loss_ohem', 'acc_seg'}


def test_losses_of_one_name_add_up():
    halves = [{**CE, 'loss_weight': 0.25}, {**CE, 'loss_weight': 0.75}]
    theirs, ours = make_pair('FCNHead', halves, THEIRS, **FCN)
    same_step(theirs, ours, features(), make_samples())


def test_half_precision_is_close():
    """The small logits are resized in float32, the host's in bfloat16."""
    _, ours = make_pair('FCNHead', [CE, OHEM], THEIRS, **FCN)
    inputs, samples = features(), make_samples()
    expected, _ = step(ours, inputs, samples)
    with torch.autocast('cpu', torch.bfloat16):
        losses, gradients = step(ours, inputs, samples)
    for name in ('loss_ce', 'loss_ohem'):
        assert losses[name].dtype == torch.float32
        torch.testing.assert_close(
            losses[name], expected[name], rtol=0.03, atol=0
        )
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_fallback_is_said_once(said):
    dice = {'type': 'mmseg.DiceLoss', 'loss_name': 'loss_dice'}
    theirs, ours = make_pair('FCNHead', [CE, dice], [THEIRS, dice], **FCN)
    samples = make_samples(ignore=None)
    for _ in range(3):
        same_step(theirs, ours, features(), samples)
    assert len(said) == 1
    assert 'FCNHead: losses are computed from full-resolution' in said[0]
    assert "DiceLoss(loss_name='loss_dice', " in said[0]


SIGMOID = {'use_sigmoid': True}
ONE_CHANNEL = {'num_classes': 2, 'out_channels': 1, 'threshold': 0.5}
SAMPLER = {'type': 'mmseg.OHEMPixelSampler', 'thresh': 0.7, 'min_kept': 9}


@pytest.mark.parametrize(
    ('ours', 'theirs', 'options', 'reason'),
    [
        (CE, THEIRS, {'sampler': SAMPLER}, 'OHEMPixelSampler chooses pixels'),
        (
            {**CE, **SIGMOID},
            {**THEIRS, **SIGMOID},
            ONE_CHANNEL,
            'use_sigmoid=True) needs them',
        ),
        (THEIRS, THEIRS, {}, 'mmext.CheckedCrossEntropyLoss does not'),
    ],
)
def test_falls_back(ours, theirs, options, reason, said):
    pair = make_pair('FCNHead', ours, theirs, **options, **FCN)
    samples = make_samples(num_classes=options.get('num_classes', 5))
    same_step(*pair, features(), samples)
    assert reason in said[0]


def test_accuracy_without_a_loss_of_ours():
    """A loss of the user's may take low-resolution logits its own way."""

    class Own(nn.Module):
        can_resize = True
        loss_name = 'loss_own'

        def forward(self, logits, label, ignore_index):
            return logits.logits.mean()

    theirs, ours = make_pair('FCNHead', CE, THEIRS, **FCN)
    ours.loss_decode = Own()
    inputs, samples = tuple(features()), make_samples()
    expected = theirs.loss(inputs, samples, {})
    losses = ours.loss(inputs, samples, {})
    assert losses['loss_own'] == ours(inputs).mean()
    torch.testing.assert_close(losses['acc_seg'], expected['acc_seg'])


def test_out_of_range_raises():
    _, ours = make_pair('FCNHead', CE, THEIRS, **FCN)
    samples = make_samples()
    samples[1].gt_sem_seg.data[0, 2, 3] = 5
    with pytest.raises(LabelRangeError, match='loss_ce: 1 pixels'):
        step(ours, features(), samples)


@needs_device
def test_does_not_wait():
    _, ours = make_pair('FCNHead', [CE, {**CE, 'loss_name': 'b'}], CE, **FCN)

    def run(head, inputs, samples):
        head.loss(inputs, samples, {})['loss_ce'].backward()

    assert device_waits(run, ours, features(), make_samples()) == []


def test_rejects_several_maps():
    class Tuples(ResizedLossMixin, FCNHead):
        def forward(self, inputs):
            return (super().forward(inputs),) * 2

    head = Tuples(num_classes=5, loss_decode=CE, **FCN)
    with pytest.raises(TypeError, match='Tuples must return one tensor'):
        head.loss(tuple(features()), make_samples(), {})


@pytest.mark.parametrize('host', [EncHead, PointHead, object])
def test_rejects_heads_with_losses_of_their_own(host):
    with pytest.raises(TypeError, match='Mixed: ResizedLossMixin must stand'):
        type('Mixed', (ResizedLossMixin, host), {})
    with pytest.raises(TypeError, match='got that of no head'):
        type('Late', (FCNHead, ResizedLossMixin), {})


def test_a_subclass_may_add_to_the_losses():
    class Mine(decode_heads.FCNHead):
        def loss_by_feat(self, seg_logits, batch_data_samples):
            losses = super().loss_by_feat(seg_logits, batch_data_samples)
            return losses | {'loss_mine': seg_logits.mean()}

    head = Mine(num_classes=5, loss_decode=CE, **FCN)
    losses, _ = step(head, features(), make_samples())
    assert list(losses) == ['loss_ce', 'acc_seg', 'loss_mine']


def test_nothing_is_kept_after_the_step():
    """Neither logits nor labels stay alive with the losses in the log."""
    _, ours = make_pair('FCNHead', [CE, OHEM], THEIRS, **FCN)
    made = []
    ours.conv_seg.register_forward_hook(
        lambda *args: made.append(weakref.ref(args[-1]))
    )
    losses, _ = step(ours, features(), make_samples())
    assert made[0]() is None
    assert losses['loss_ce'] > 0
