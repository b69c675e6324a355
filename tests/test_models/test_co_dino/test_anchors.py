"""Samples of anchors, and what is left to mmdet's code.

Assignment, samples and arithmetic of boxes: see the tests of the heads.
"""

from types import SimpleNamespace

import pytest
import torch
from mmdet.models.task_modules import (
    ATSSAssigner,
    MaxIoUAssigner,
    PseudoSampler,
    RandomSampler,
)
from mmengine.registry import init_default_scope

from mmext.models.co_dino.anchors import (
    NEGATIVE,
    assigns_plainly,
    draw_samples,
)


@pytest.fixture(autouse=True)
def _scope() -> None:
    init_default_scope('mmdet')


def test_samples_are_random() -> None:
    assigned = torch.tensor([0, 1] * 20 + [NEGATIVE] * 40)
    sampler = RandomSampler(num=8, pos_fraction=0.5)
    drawn = [draw_samples(assigned, sampler) for _ in range(300)]
    counts = torch.zeros(80)
    for picture in drawn:
        assert len(set(picture.index[picture.drawn].tolist())) == 8
        counts[picture.index[picture.drawn]] += 1
    # 4 of 40 in 300 draws: 30 on average, with a deviation of 5.2.
    assert counts.min() > 8
    assert counts.max() < 60


def test_what_is_left_to_mmdet() -> None:
    def plain(assigner, sampler, **train_cfg):
        head = SimpleNamespace(train_cfg=train_cfg)
        return assigns_plainly(head, assigner, sampler)

    thresholds = dict(pos_iou_thr=0.7, neg_iou_thr=0.3, min_pos_iou=0.3)
    sampler = RandomSampler(8, 0.5)
    pseudo = PseudoSampler()
    assert plain(MaxIoUAssigner(**thresholds), sampler, allowed_border=-1)
    assert plain(MaxIoUAssigner(**thresholds), sampler)
    assert plain(ATSSAssigner(9), pseudo, allowed_border=-1)
    for setting in (
        {'ignore_iof_thr': 0.5},
        {'gt_max_assign_all': False},
        {'gpu_assign_thr': 100},
        {'iou_calculator': {'type': 'mmdet.BboxOverlaps2D', 'scale': 2.0}},
    ):
        assert not plain(MaxIoUAssigner(**thresholds, **setting), sampler)
    assert not plain(MaxIoUAssigner(**thresholds), sampler, allowed_border=0)
    assert not plain(MaxIoUAssigner(**thresholds), pseudo)
    assert not plain(ATSSAssigner(9, alpha=0.8), pseudo)
    assert not plain(ATSSAssigner(9), sampler)
