"""Our loss in the configs of MMSegmentation's heads."""

import pytest
import torch
from helpers.drop_in import assert_drop_in
from mmengine.config import ConfigDict
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

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


@pytest.mark.parametrize('avg_non_ignore', [False, True])
def test_one_channel_of_two_classes(avg_non_ignore):
    cfg = head_cfg(
        num_classes=2,
        out_channels=1,
        threshold=0.3,
        loss_decode=loss_cfg(use_sigmoid=True, avg_non_ignore=avg_non_ignore),
    )
    assert_same_in(cfg, samples(2))


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
