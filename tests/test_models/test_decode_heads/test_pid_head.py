"""``mmext.PIDHead``: the losses of MMSegmentation's, in less memory."""

import pytest
import torch
from helpers.tiny_segmentation import make_pair, make_samples, same_step, step
from mmengine.structures import PixelData
from mmseg.models.utils import resize

from mmext.models.decode_heads import PIDHead
from mmext.models.losses import (
    CheckedOhemCrossEntropy,
    LabelRangeError,
    ResizedLogits,
)

WEIGHT = [0.5, 1.0, 2.0, 4.0, 0.25]
OHEM = {
    'thres': 0.6,
    'min_kept': 60,
    'class_weight': WEIGHT,
    'loss_weight': 1.0,
}
OURS = [
    {'type': 'mmext.CheckedCrossEntropyLoss', 'loss_weight': 0.4},
    {'type': 'mmext.CheckedOhemCrossEntropy', **OHEM},
    {'type': 'mmext.CheckedBoundaryLoss', 'loss_weight': 20.0},
    {'type': 'mmext.CheckedOhemCrossEntropy', **OHEM},
]
THEIRS = [
    {'type': 'mmseg.CrossEntropyLoss', 'loss_weight': 0.4},
    {'type': 'mmseg.OhemCrossEntropy', **OHEM},
    {'type': 'mmseg.BoundaryLoss', 'loss_weight': 20.0},
    {'type': 'mmseg.OhemCrossEntropy', **OHEM},
]
OPTIONS = {'in_channels': 8, 'channels': 6, 'align_corners': True}


def features():
    return [torch.randn(2, channels, 6, 8) for channels in (4, 8, 4)]


def pair(ours=OURS, theirs=THEIRS, **options):
    return make_pair('PIDHead', ours, theirs, **{**OPTIONS, **options})


def samples(**options):
    return make_samples(edges=True, **options)


@pytest.fixture
def logits():
    """Of all three branches; some pixels are probably edges."""
    maps = [
        torch.randn(2, channels, 6, 8, dtype=torch.float64)
        for channels in (5, 5, 1)
    ]
    return [(3 * label_map).requires_grad_() for label_map in maps]


@pytest.mark.parametrize('align_corners', [False, True])
def test_losses_and_gradients_are_those_of_mmseg(align_corners):
    theirs, ours = pair(align_corners=align_corners)
    assert type(ours) is PIDHead
    losses = same_step(theirs, ours, features(), samples())
    assert list(losses) == [
        'loss_sem_p',
        'loss_sem_i',
        'loss_bd',
        'loss_sem_bd',
        'acc_seg',
    ]


def test_one_pass_per_logit_map(monkeypatch):
    calls = []
    for name in ('nll', 'cross_entropy_sum'):
        plain = getattr(ResizedLogits, name)

        def counted(self, *args, plain=plain, name=name, **kwargs):
            calls.append(name)
            return plain(self, *args, **kwargs)

        monkeypatch.setattr(ResizedLogits, name, counted)
    monkeypatch.setattr(ResizedLogits, 'dense', lambda _: 1 / 0)
    _, ours = pair()
    step(ours, features(), samples())
    assert calls == ['cross_entropy_sum', 'nll']


def test_all_ignored():
    _, ours = pair()
    data = samples()
    for sample in data:
        sample.gt_sem_seg.data.fill_(255)
    losses, gradients = step(ours, features(), data)
    for name in ('loss_sem_p', 'loss_sem_i', 'loss_sem_bd'):
        assert losses[name] == 0
    assert gradients['input 0'].abs().sum() == 0


def test_ignores_what_the_head_ignores(logits):
    _, ours = pair()
    _, other = pair(ignore_index=11)
    torch.manual_seed(3)
    data = samples()
    torch.manual_seed(3)
    same = samples(ignore=11)
    for name, value in ours.loss_by_feat(logits, data).items():
        torch.testing.assert_close(
            other.loss_by_feat(logits, same)[name], value
        )


@pytest.mark.parametrize('index', [1, 3])
@pytest.mark.parametrize('losses', [OURS, THEIRS])
def test_rejects_two_values_to_ignore(index, losses):
    losses = [dict(loss) for loss in losses]
    losses[index]['ignore_label'] = 255
    with pytest.raises(
        ValueError, match=r'ignore_label=255 of .*Ohem.*ignore_index=11'
    ):
        PIDHead(num_classes=5, ignore_index=11, loss_decode=losses, **OPTIONS)


def test_falls_back_with_what_the_head_ignores(logits):
    """MMSegmentation's loss_by_feat does not pass it."""
    other = [*OURS[:2], THEIRS[2], OURS[3]]
    _, ours = pair(ignore_index=4)
    _, fallen = pair(ours=other, ignore_index=4)
    data = samples(ignore=4)
    expected = ours.loss_by_feat(logits, data)
    for name, value in fallen.loss_by_feat(logits, data).items():
        torch.testing.assert_close(value, expected[name], check_dtype=False)


def test_falls_back_for_a_loss_of_ones_own(logits):
    """A forward of a subclass is called, not gone round."""

    class TwiceAsLarge(CheckedOhemCrossEntropy):
        def forward(self, *args, **kwargs):
            return 2 * super().forward(*args, **kwargs)

    _, ours = pair()
    data = samples()
    expected = ours.loss_by_feat(logits, data)
    ours.loss_decode[3] = TwiceAsLarge(**OHEM)
    losses = ours.loss_by_feat(logits, data)
    torch.testing.assert_close(
        losses['loss_sem_bd'], 2 * expected['loss_sem_bd']
    )


def test_other_losses_fall_back_and_say_so(monkeypatch):
    said = []
    monkeypatch.setattr(
        'mmext.models.decode_heads.heads.print_log',
        lambda text, *_: said.append(text),
    )
    theirs, ours = pair(ours=THEIRS)
    for _ in range(2):
        same_step(theirs, ours, features(), samples())
    assert len(said) == 1
    assert 'CheckedCrossEntropyLoss' in said[0]


@pytest.mark.parametrize('ignore', [11, 255, 1])
def test_padding_of_edges_is_what_the_head_ignores(ignore, logits):
    """The host's preprocessor pads both maps with one value."""
    _, ours = pair(ignore_index=ignore)
    data = samples(ignore=ignore)
    for sample in data:
        sample.gt_edge_map.data[:, :, -4:] = 255 if ignore == 1 else ignore
    loss = ours.loss_by_feat(logits, data)['loss_bd']
    # Counts in the mean, and nowhere else.
    kept = ours.loss_decode[2](
        resize(logits[2], (23, 31), mode='bilinear', align_corners=True)[
            ..., :-4
        ],
        torch.cat([sample.gt_edge_map.data[..., :-4] for sample in data]),
    )
    torch.testing.assert_close(loss, kept * 27 / 31)


def test_rejects_edges_of_another_size(logits):
    _, ours = pair()
    data = samples()
    for sample in data:
        del sample.gt_edge_map
        sample.gt_edge_map = PixelData(data=torch.zeros(1, 5, 6).long())
    with pytest.raises(ValueError, match='gt_edge_map must have the shape'):
        ours.loss_by_feat(logits, data)


def test_rejects_samples_without_edges():
    _, ours = pair()
    with pytest.raises(ValueError, match=r'sample 0 \(0.png\).*GenerateEdge'):
        step(ours, features(), make_samples())


@pytest.mark.parametrize('losses', [OURS[:3], OURS[0]])
def test_rejects_other_numbers_of_losses(losses):
    with pytest.raises(ValueError, match='list of 4 losses'):
        PIDHead(num_classes=5, loss_decode=losses, **OPTIONS)


def test_predicts_as_mmseg():
    theirs, ours = pair()
    x = torch.randn(1, 8, 6, 8)
    assert torch.equal(ours.eval()(x), theirs.eval()(x))
    assert PIDHead.forward is type(theirs).forward


@pytest.mark.parametrize('policy', ['raise', 'ignore'])
@pytest.mark.parametrize('deferred', [None, True])
@pytest.mark.parametrize('seed', range(8))
def test_torture(seed, deferred, policy):
    """Nothing but a LabelRangeError, and never a number that is not finite."""
    losses = [{**loss, 'out_of_range': policy} for loss in OURS]
    losses[0]['class_weight'] = WEIGHT
    ignore = (255, -1, 3, 11)[seed % 4]
    _, head = pair(ours=losses, ignore_index=ignore)
    for loss in head.loss_decode:
        loss.label_range.deferred = deferred
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    torch.manual_seed(seed)
    logits = [
        (40 * torch.randn(2, channels, 6, 8)).to(dtypes[seed % 3 + seed // 4])
        for channels in (5, 5, 1)
    ]
    logits = [loss.requires_grad_() for loss in logits]
    data = samples(ignore=None, dtype=torch.uint8 if seed % 2 else torch.int64)
    for sample in data:
        for loss in (sample.gt_sem_seg.data, sample.gt_edge_map.data):
            wrong = torch.randint(
                *((0, 256) if seed % 2 else (-300, 300)), loss.shape
            ).to(loss.dtype)
            loss.copy_(loss.where(torch.rand(loss.shape) < seed / 8, wrong))
    if deferred is None and policy == 'raise':
        with pytest.raises(LabelRangeError):
            head.loss_by_feat(logits, data)
        return
    losses = head.loss_by_feat(logits, data)
    assert all(value.isfinite().all() for value in losses.values())
    total = sum(value for name, value in losses.items() if 'loss' in name)
    for gradient in torch.autograd.grad(total, logits):
        assert gradient.isfinite().all()
    if policy == 'raise':
        with pytest.raises(LabelRangeError):
            head.loss_by_feat(logits, data)
