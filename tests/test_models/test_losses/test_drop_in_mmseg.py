"""Our loss in the configs of MMSegmentation's heads."""

import pytest
import torch
from helpers.drop_in import assert_drop_in, build_pair
from mmengine.config import ConfigDict
from mmengine.registry import DefaultScope
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

from mmext.models.losses import LabelRangeError

WEIGHT = [0.5, 1.0, 2.0, 0.25, 3.0]
SIZE = (20, 22)


def head_cfg(type_: str = 'FCNHead', **options) -> dict:
    return {
        'type': type_,
        'in_channels': 6,
        'channels': 4,
        'num_classes': 5,
        'dropout_ratio': 0.1,
        'norm_cfg': {'type': 'BN'},
        'align_corners': False,
        **options,
    }


def loss_cfg(**options) -> dict:
    return {'type': 'CrossEntropyLoss', 'loss_weight': 0.4, **options}


def samples(num_classes: int = 5, ignored: float = 0.3) -> list[SegDataSample]:
    generator = torch.Generator().manual_seed(0)
    batch = []
    for _ in range(2):
        label = torch.randint(0, num_classes, SIZE, generator=generator)
        label[torch.rand(SIZE, generator=generator) < ignored] = 255
        sample = SegDataSample()
        sample.gt_sem_seg = PixelData(data=label[None])
        batch.append(sample)
    return batch


def features(*strides: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(2, 6, SIZE[0] // s, SIZE[1] // s, generator=generator)
        for s in strides or (2,)
    ]


def run(batch: list[SegDataSample], *strides: int):
    return lambda head: head.loss(features(*strides), batch, None)


def assert_same_in(cfg: dict, batch=None, *strides: int) -> None:
    batch = samples() if batch is None else batch
    assert_drop_in(MODELS, 'mmseg', cfg, run(batch, *strides))


@pytest.mark.parametrize('sigmoid', [False, True])
@pytest.mark.parametrize('avg_non_ignore', [False, True])
@pytest.mark.parametrize('reduction', ['mean', 'sum'])
def test_fcn_head(sigmoid, avg_non_ignore, reduction):
    loss = loss_cfg(
        use_sigmoid=sigmoid,
        avg_non_ignore=avg_non_ignore,
        reduction=reduction,
    )
    assert_same_in(head_cfg(loss_decode=loss))


def test_class_weights_where_theirs_fails():
    """avg_non_ignore and ignored pixels: theirs cannot count them."""
    cfg = head_cfg(
        loss_decode=loss_cfg(class_weight=WEIGHT, avg_non_ignore=True),
        dropout_ratio=0,
    )
    theirs, ours = build_pair(MODELS, 'mmseg', cfg)
    batch = samples()
    with pytest.raises(IndexError):
        run(batch)(theirs)
    loss = run(batch)(ours)['loss_ce']
    label = torch.cat([sample.gt_sem_seg.data for sample in batch])
    logits = torch.nn.functional.interpolate(
        ours(features()), SIZE, mode='bilinear'
    )
    expected = torch.nn.functional.cross_entropy(
        logits, label, torch.tensor(WEIGHT), ignore_index=255
    )
    torch.testing.assert_close(loss, 0.4 * expected)


@pytest.mark.parametrize('avg_non_ignore', [False, True])
def test_one_channel_of_two_classes(avg_non_ignore):
    cfg = head_cfg(
        num_classes=2,
        out_channels=1,
        threshold=0.3,
        loss_decode=loss_cfg(use_sigmoid=True, avg_non_ignore=avg_non_ignore),
    )
    assert_same_in(cfg, samples(2))


def test_one_channel_when_all_is_ignored():
    """Theirs takes the maximum of nothing, and fails."""
    cfg = head_cfg(
        num_classes=2,
        out_channels=1,
        loss_decode=loss_cfg(use_sigmoid=True),
    )
    theirs, ours = build_pair(MODELS, 'mmseg', cfg)
    batch = samples(2, ignored=1.1)
    with pytest.raises(RuntimeError, match='max'):
        run(batch)(theirs)
    loss = run(batch)(ours)['loss_ce']
    loss.backward()
    assert loss == 0
    assert all((p.grad == 0).all() for p in ours.parameters())


def test_sampler():
    cfg = head_cfg(
        loss_decode=loss_cfg(),
        sampler={'type': 'OHEMPixelSampler', 'thresh': 0.7, 'min_kept': 50},
    )
    assert_same_in(cfg)


def test_two_losses():
    losses = [
        loss_cfg(loss_name='loss_a'),
        loss_cfg(loss_name='loss_b', use_sigmoid=True),
        {'type': 'DiceLoss', 'loss_name': 'loss_dice'},
    ]
    assert_same_in(head_cfg(loss_decode=losses))


def test_enc_head():
    """One-hot integer targets per image, and no ignore_index in the call."""
    cfg = head_cfg(
        'EncHead',
        in_channels=[6, 6],
        in_index=(0, 1),
        num_codes=3,
        loss_decode=loss_cfg(),
        loss_se_decode=loss_cfg(use_sigmoid=True),
    )
    assert_same_in(cfg, None, 2, 4)


def test_point_head():
    cfg = head_cfg(
        'PointHead',
        in_channels=[6],
        in_index=[0],
        num_fcs=1,
        loss_decode=loss_cfg(),
    )
    train_cfg = {
        'num_points': 40,
        'oversample_ratio': 3,
        'importance_sample_ratio': 0.75,
    }
    del cfg['norm_cfg']

    def losses(head):
        coarse = torch.randn(2, 5, 10, 11)
        return head.loss(features(2), coarse, samples(), ConfigDict(train_cfg))

    assert_drop_in(MODELS, 'mmseg', cfg, losses)


def test_error_inside_a_head_names_the_values():
    cfg = head_cfg(loss_decode=loss_cfg())
    _, ours = build_pair(MODELS, 'mmseg', cfg)
    batch = samples()
    batch[1].gt_sem_seg.data[0, 3, 7:9] = 5
    with (
        DefaultScope.overwrite_default_scope('mmseg'),
        pytest.raises(LabelRangeError, match=r'values: 5 \(2\)') as error,
    ):
        run(batch)(ours)
    assert 'first 5 at (y=3, x=7)' in str(error.value)
