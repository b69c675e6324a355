"""The mask heads of ``-Inst`` models against a recorded public run.

``tests/oracles/codetr_masks.pt`` is of ``record_codetr_masks.py`` beside it.
"""

from pathlib import Path

import pytest
import torch
from mmdet.structures.mask import BitmapMasks
from mmengine.config import ConfigDict
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

from mmext.models import QueryMaskHead
from mmext.models.co_dino import query_mask_head

ORACLES = Path(__file__).parents[2] / 'oracles'
CHANNELS, CLASSES, SIZE = 16, 5, (64, 80)
TRAIN_CFG = {
    'assigner': {
        'type': 'mmdet.MaxIoUAssigner',
        'pos_iou_thr': 0.5,
        'neg_iou_thr': 0.5,
        'min_pos_iou': 0.5,
        'match_low_quality': False,
    },
    'sampler': {
        'type': 'mmdet.RandomSampler',
        'num': 64,
        'pos_fraction': 0.25,
        'neg_pos_ub': -1,
        'add_gt_as_proposals': True,
    },
}


def small_head(train_cfg: dict | None = None) -> QueryMaskHead:
    """The recorded head."""
    init_default_scope('mmdet')
    return QueryMaskHead(
        {
            'type': 'mmdet.SingleRoIExtractor',
            'roi_layer': {
                'type': 'RoIAlign',
                'output_size': 14,
                'sampling_ratio': 0,
            },
            'out_channels': CHANNELS,
            'featmap_strides': [4, 8, 16],
            'finest_scale': 12,
        },
        {
            'type': 'mmext.RefineMaskHead',
            'num_classes': CLASSES,
            'in_channels': CHANNELS,
            'conv_out_channels': CHANNELS,
            'loss_weight': 1.33 * 12,
        },
        {
            'type': 'mmext.CoMaskIoUHead',
            'num_convs': 2,
            'num_fcs': 1,
            'in_channels': CHANNELS,
            'conv_out_channels': CHANNELS,
            'fc_out_channels': 24,
            'num_classes': CLASSES,
            'loss_iou': {'type': 'mmdet.MSELoss', 'loss_weight': 6.0},
        },
        train_cfg=ConfigDict(train_cfg or TRAIN_CFG),
        test_cfg=ConfigDict(mask_thr_binary=0.5),
    )


@pytest.fixture
def record() -> dict:
    return torch.load(ORACLES / 'codetr_masks.pt', weights_only=True)


@pytest.fixture
def head(record) -> QueryMaskHead:
    head = small_head()
    head.load_state_dict(record['state_dict'], strict=True)
    return head


def test_losses_and_gradients_are_those_of_the_public_code(record, head):
    feats = [feat.requires_grad_() for feat in record['feats']]
    first, second = record['rois']
    rois = torch.cat((torch.zeros(len(first), 1), first), 1)
    others = torch.cat((torch.ones(len(second), 1), second), 1)
    rois = torch.cat((rois, others))
    labels = torch.cat(
        [of[i] for of, i in zip(record['labels'], record['matched'])]
    )
    matched = torch.cat((record['matched'][0], record['matched'][1] + 2))
    masks = [BitmapMasks(item.numpy(), *SIZE) for item in record['masks']]
    preds, _ = head._masks(feats, rois, labels)
    for mine, other in zip(preds, record['preds'], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    order, counts = query_mask_head.rois_by_level(
        head.mask_roi_extractor, rois, labels >= 0
    )
    assert (counts > 0).sum() == 2
    losses = head._losses_of(
        feats, order, (rois, labels, matched), masks, counts.tolist()
    )
    assert losses.keys() == record['losses'].keys()
    for name, loss in record['losses'].items():
        torch.testing.assert_close(losses[name], loss, rtol=1e-5, atol=1e-6)
    sum(losses.values()).backward()
    for feat, grad in zip(feats, record['grads'], strict=True):
        torch.testing.assert_close(feat.grad, grad, rtol=1e-4, atol=1e-4)
    for name, parameter in head.named_parameters():
        torch.testing.assert_close(
            parameter.grad, record['grads_of'][name], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize('most', [3, 150])
def test_masks_and_scores_are_those_of_the_public_code(
    record, head, most, monkeypatch
):
    monkeypatch.setattr(query_mask_head, 'MAX_MASKS', most)
    detected = record['detected']
    results = InstanceData(
        bboxes=detected[:, :4].clone(),
        scores=detected[:, 4],
        labels=record['classes'],
    )
    metas = [{'ori_shape': (32, 40), 'scale_factor': (2.0, 2.0)}]
    feats = [feat[:1] for feat in record['feats']]
    with torch.no_grad():
        (results,) = head.predict_mask(feats, metas, [results], rescale=True)
    assert torch.equal(results.masks, record['segments'])
    assert results.masks.any((1, 2)).sum() >= 3
    torch.testing.assert_close(
        results.mask_scores, record['scores'], rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(results.bboxes, detected[:, :4] / 2)
