"""The mask heads of ``-Inst`` models against a recorded public run.

``tests/oracles/codetr_masks.pt`` is of ``record_codetr_masks.py`` beside it.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny_co_dino import (
    BATCHES,
    NUM_CLASSES,
    build_tiny,
    make_batch,
    total_loss,
    training_losses,
    without_gradient,
)
from helpers.torch_versions import half_on_cpu
from mmdet.models.roi_heads.mask_heads import MaskIoUHead
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy
from mmdet.structures.mask import BitmapMasks, PolygonMasks
from mmengine.config import ConfigDict
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

from mmext.models import CoDINOHead, QueryMaskHead
from mmext.models.co_dino import convert_codetr_state_dict, query_mask_head
from mmext.models.co_dino.matching import read_ground_truth

ORACLES = Path(__file__).parents[2] / 'oracles'
CHANNELS, CLASSES, SIZE = 16, 5, (64, 80)
REFINE = 'r18_small_instance_refine'
MASK_LOSSES = ('loss_mask', 'loss_mask_iou')
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


def small_cfg(
    in_channels: int = CHANNELS,
    conv_out_channels: int = CHANNELS,
    num_classes: int = CLASSES,
) -> dict:
    """The parts of the recorded head."""
    widths = {
        'in_channels': in_channels,
        'conv_out_channels': conv_out_channels,
        'num_classes': num_classes,
    }
    return {
        'mask_roi_extractor': {
            'type': 'mmdet.SingleRoIExtractor',
            'roi_layer': {
                'type': 'RoIAlign',
                'output_size': 14,
                'sampling_ratio': 0,
            },
            'out_channels': in_channels,
            'featmap_strides': [4, 8, 16],
            'finest_scale': 12,
        },
        'mask_head': {
            'type': 'mmext.RefineMaskHead',
            'loss_weight': 1.33 * 12,
            **widths,
        },
        'mask_iou_head': {
            'type': 'mmext.CoMaskIoUHead',
            'num_convs': 2,
            'num_fcs': 1,
            'fc_out_channels': 24,
            'loss_iou': {'type': 'mmdet.MSELoss', 'loss_weight': 6.0},
            **widths,
        },
    }


@pytest.fixture
def record() -> dict:
    return torch.load(ORACLES / 'codetr_masks.pt', weights_only=True)


@pytest.fixture
def head(record) -> QueryMaskHead:
    init_default_scope('mmdet')
    head = QueryMaskHead(
        **small_cfg(),
        train_cfg=ConfigDict(TRAIN_CFG),
        test_cfg=ConfigDict(mask_thr_binary=0.5),
    )
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
    assert results.masks.flatten(1).any(1).sum() >= 3
    torch.testing.assert_close(
        results.mask_scores, record['scores'], rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(results.bboxes, detected[:, :4] / 2)


def public_spec(name: str) -> dict[str, str]:
    """Names and shapes of the tensors of a public model's mask heads."""
    text = (ORACLES / f'codetr_{name}_keys.tsv').read_text()
    rows = (line.split('\t')[:2] for line in text.splitlines())
    return {k: v for k, v in rows if k.startswith(('mask_head', 'mask_iou'))}


@pytest.mark.parametrize(
    ('name', 'classes'),
    [('vit_l_instance', 80), ('vit_l_lvis_instance', 1203)],
)
def test_tensors_are_those_of_the_public_models(name, classes):
    """After the converter of names, which runs on every load."""
    init_default_scope('mmdet')
    cfg = small_cfg(
        in_channels=256, conv_out_channels=256, num_classes=classes
    )
    cfg['mask_iou_head']['fc_out_channels'] = 1024
    with torch.device('meta'):
        head = QueryMaskHead(**cfg, test_cfg=ConfigDict(mask_thr_binary=0.5))
    expected = public_spec(name)
    assert len(expected) == 69
    renamed = convert_codetr_state_dict(expected)
    assert {
        f'mask_head.{key}': str(tuple(value.shape))
        for key, value in head.state_dict().items()
    } == renamed
    assert convert_codetr_state_dict(renamed) == renamed


def test_a_model_loads_the_public_names():
    model = build_tiny(base=REFINE)
    ours = 'mask_head.mask_'
    state = {
        key.replace(ours, 'mask_'): torch.full_like(value, 0.5)
        for key, value in model.state_dict().items()
    }
    assert not any(key.startswith(ours) for key in state)
    model.load_state_dict(state, strict=True)
    for parameter in model.mask_head.parameters():
        assert (parameter == 0.5).all()


@pytest.mark.parametrize(
    'case', ['ordinary', 'all empty', 'one image empty', 'odd size']
)
def test_every_parameter_learns_from_every_batch(case):
    """Also where nothing was drawn at all."""
    num_boxes, sizes, _ = BATCHES[case]
    model = build_tiny(base=REFINE)
    losses = training_losses(model, make_batch(num_boxes, sizes))
    values = {key: float(losses[key].detach()) for key in MASK_LOSSES}
    assert all(value >= 0 for value in values.values())
    assert (values['loss_mask'] > 0) == any(num_boxes)
    total_loss(losses).backward()
    assert without_gradient(model) == []


def test_rois_are_detections_before_nms_and_ground_truth(monkeypatch):
    """Denoising queries included, those of the co-heads not."""
    model = build_tiny(base=REFINE)
    seen = {}
    head, draw = model.query_head, model.mask_head.draw

    def predict(*args):
        seen['outputs'] = CoDINOHead.forward(head, *args)
        return seen['outputs']

    def watch(x, samples, boxes):
        seen['boxes'] = boxes
        return draw(x, samples, boxes)

    monkeypatch.setattr(head, 'forward', predict)
    monkeypatch.setattr(model.mask_head, 'draw', watch)
    training_losses(model, make_batch((3, 2)))
    scores, boxes = (item[-1].detach() for item in seen['outputs'])
    denoising = head.dn_generator(
        read_ground_truth(make_batch((3, 2))['data_samples'], NUM_CLASSES)
    ).references.shape[1]
    count = denoising + head.num_queries
    assert denoising > 0
    assert scores.shape[1] > count
    most = head.test_cfg['max_per_img']
    assert seen['boxes'].shape == (2, most, 4)
    for i, (height, width) in enumerate(((96, 128), (80, 96))):
        best = scores[i, :count].flatten().topk(most).indices // NUM_CLASSES
        size = torch.tensor([width, height, width, height])
        expected = bbox_cxcywh_to_xyxy(boxes[i, best]) * size
        expected = expected.clamp(min=0).minimum(size)
        torch.testing.assert_close(seen['boxes'][i], expected)


def test_shares_are_those_of_mmdet():
    generator = torch.Generator().manual_seed(0)
    masks = torch.rand(3, 20, 30, generator=generator) > 0.4
    start = torch.rand(40, 2, generator=generator) * torch.tensor([32, 22])
    extent = torch.rand(40, 2, generator=generator) * 12
    boxes = torch.cat((start, start + extent), 1)
    boxes = boxes.minimum(torch.tensor([29.5, 19.5, 30, 20]))
    matched = torch.arange(40) % 3
    bitmaps = BitmapMasks(masks.byte().numpy(), 20, 30)
    expected = MaskIoUHead._get_area_ratio(None, boxes, matched, bitmaps)
    shares = query_mask_head.shares_in_boxes(
        masks.float()[:, None], boxes, matched
    )
    torch.testing.assert_close(shares, expected)


@pytest.mark.parametrize('kind', ['polygons', 'sizes'])
def test_takes_polygons_and_masks_of_several_sizes(kind):
    model = build_tiny(base=REFINE)
    batch = make_batch((3, 2))
    for sample in batch['data_samples']:
        instances, shape = sample.gt_instances, sample.img_shape
        x1, y1, x2, y2 = instances.bboxes.numpy().T
        corners = np.stack([x1, y1, x2, y1, x2, y2, x1, y2], 1)
        if kind == 'polygons':
            instances.masks = PolygonMasks([[c] for c in corners], *shape)
    data = model.data_preprocessor(batch, True)
    if kind == 'sizes':
        masks = data['data_samples'][0].gt_instances.masks
        data['data_samples'][0].gt_instances.masks = masks.pad((112, 128))
    losses = model.loss(data['inputs'], data['data_samples'])
    assert 0 < losses['loss_mask'] < 100


@half_on_cpu
def test_half_precision_predicts_the_same_boxes_masks():
    model = build_tiny(base=REFINE).eval()
    with torch.no_grad():
        (first, *_) = model.test_step(make_batch())
        (half, *_) = model.half().test_step(make_batch())
    for sample in (first, half):
        instances = sample.pred_instances
        assert instances.masks.shape[1:] == sample.ori_shape[:2]
        assert (instances.mask_scores <= instances.scores).all()
        assert instances.mask_scores.isfinite().all()


@pytest.mark.parametrize(
    ('part', 'change', 'message'),
    [
        ('mask_head', {'stage_sizes': (14, 30)}, 'each twice the one before'),
        ('mask_head', {'stage_loss_weights': (1,)}, 'one weight per stage'),
        ('mask_head', {'stage_sizes': (7, 14, 28, 56)}, 'size of the RoIs'),
        ('train_cfg', {'sampler': {'type': 'PseudoSampler'}}, 'RandomSampler'),
        ('test_cfg', {'mask_thr_binary': None}, 'must have mask_thr_binary'),
    ],
)
def test_refuses(part, change, message):
    init_default_scope('mmdet')
    cfg = small_cfg()
    cfg['train_cfg'] = ConfigDict(TRAIN_CFG)
    cfg['test_cfg'] = ConfigDict(mask_thr_binary=0.5)
    cfg[part].update(change)
    with pytest.raises(ValueError, match=message):
        QueryMaskHead(**cfg)


def test_needs_masks():
    model = build_tiny(base=REFINE)
    batch = make_batch((3, 2))
    data = model.data_preprocessor(batch, True)
    del data['data_samples'][1].gt_instances.masks
    with pytest.raises(ValueError, match=r'must carry masks .* in sample 1; '):
        model.loss(data['inputs'], data['data_samples'])
