"""Co-Deformable-DETR against a recorded run of the public code.

``tests/oracles/record_co_deformable.py`` says what ran. The positives of the
auxiliary heads are cut, and filled up with negatives, by ``torch.arange`` in
the place of ``torch.randperm``, there and here.
"""

from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers.tiny_co_dino import (
    BATCHES,
    build_tiny,
    flat_losses,
    make_batch,
    propose_nothing,
    total_loss,
    training_losses,
    without_gradient,
)
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData

from mmext.models.co_dino import (
    CoDeformableTransformer,
    CoDeformDETRHead,
    convert_codetr_state_dict,
)

ORACLES = Path(__file__).parents[2] / 'oracles'
BASE = 'co_deformable_detr_r50'
_LAYERS = {'num_heads': 8, 'feedforward_channels': 64}
_PROPOSALS = {'nms_pre': 100, 'max_per_img': 60}
RECORDED = {
    'num_classes': 7,
    'query_head': {
        'num_queries': 40,
        'max_co_queries': 300,
        'transformer': {
            'encoder': {**_LAYERS, 'num_layers': 1},
            'decoder': {**_LAYERS, 'num_layers': 2},
        },
    },
    'roi_head': {
        'bbox_roi_extractor': {'roi_layer': {'output_size': 3}},
        'bbox_head': {'roi_feat_size': 3},
    },
    'train_cfg': {
        'rpn_head': {'sampler': {'type': 'mmdet.PseudoSampler'}},
        'rpn_proposal': _PROPOSALS,
        'roi_head': {'sampler': {'num': 100000, 'pos_fraction': 1.0}},
    },
}


@pytest.fixture(scope='module')
def record() -> dict:
    return torch.load(ORACLES / 'codetr_deformable.pt', weights_only=True)


def _samples(record: dict) -> list[DetDataSample]:
    samples = []
    for gt in record['gt']:
        sample = DetDataSample(
            metainfo={
                'img_shape': gt['size'],
                'pad_shape': gt['size'],
                'batch_input_shape': record['gt'][0]['size'],
                'scale_factor': record['scale_factor'],
            }
        )
        sample.gt_instances = InstanceData(
            bboxes=gt['bboxes'].clone(), labels=gt['labels'].clone()
        )
        sample.ignored_instances = InstanceData(
            bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long)
        )
        samples.append(sample)
    return samples


@pytest.fixture(scope='module')
def model(record: dict) -> torch.nn.Module:
    """The model after a training step from the recorded maps."""
    model = build_tiny(base=BASE, **RECORDED)
    assert type(model.query_head) is CoDeformDETRHead
    assert type(model.query_head.transformer) is CoDeformableTransformer
    state = convert_codetr_state_dict(record['state_dict'])
    given = {k for k in model.state_dict() if not k.startswith('backbone.')}
    given = {key for key in given if not key.startswith('neck.')}
    assert given == set(state)
    model.load_state_dict(record['state_dict'], strict=False)
    for key in given:
        assert torch.equal(model.state_dict()[key], state[key]), key
    model.feats = [feat.clone().requires_grad_() for feat in record['feats']]
    model.extract_feat = lambda inputs: model.feats
    with mock.patch('torch.randperm', torch.arange):
        model.step_losses = model.train().loss(None, _samples(record))
    total_loss(model.step_losses).backward()
    return model


def test_every_loss(record, model) -> None:
    results = {k: float(v) for k, v in flat_losses(model.step_losses).items()}
    assert len(results) == 49
    # The public code sums the levels of a loss, and so does mmengine.
    summed: dict[str, float] = {}
    for name, value in results.items():
        name = name.partition('[')[0]
        summed[name] = summed.get(name, 0.0) + value
    assert summed == pytest.approx(record['losses'], rel=1e-5, abs=1e-7)


def test_every_gradient(record, model) -> None:
    expected = convert_codetr_state_dict(record['grads'])
    own = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if not name.startswith(('backbone.', 'neck.'))
    }
    assert own.keys() == expected.keys()
    for i, (feat, grad) in enumerate(zip(model.feats, record['feat_grads'])):
        own[f'feat {i}'], expected[f'feat {i}'] = feat.grad, grad
    for name, grad in expected.items():
        # Below 1e-5 it is what cancellation left over.
        apart = float((own[name] - grad).abs().max())
        assert apart < max(1e-4 * float(grad.abs().max()), 1e-5), name


def test_outputs_and_detections(record, model) -> None:
    model.eval()
    samples = _samples(record)
    with torch.no_grad():
        scores, boxes = model._forward(None, samples)
        results = model.predict(torch.zeros(0), samples)
    for ours, theirs in ((scores, 'scores'), (boxes, 'boxes')):
        torch.testing.assert_close(ours, record[theirs], rtol=1e-5, atol=1e-5)
    for result, expected in zip(results, record['detections']):
        detections = result.pred_instances
        assert len(detections) == 100
        torch.testing.assert_close(
            detections.scores, expected['scores'], rtol=1e-5, atol=1e-6
        )
        assert torch.equal(detections.labels, expected['labels'])
        torch.testing.assert_close(
            detections.bboxes, expected['bboxes'], rtol=1e-5, atol=1e-3
        )


@pytest.mark.parametrize('case', BATCHES)
@pytest.mark.parametrize('with_coord_feat', [True, False])
def test_every_parameter_learns(case, with_coord_feat) -> None:
    """So that DDP needs no search, whatever is in the pictures."""
    num_boxes, sizes, proposes = BATCHES[case]
    transformer = {'with_coord_feat': with_coord_feat}
    model = build_tiny(base=BASE, query_head={'transformer': transformer})
    if not proposes:
        propose_nothing(model)
    losses = training_losses(model, make_batch(num_boxes, sizes))
    total_loss(losses).backward()
    assert without_gradient(model) == []
    assert not any(name.startswith('dn_') for name in losses)
    if not any(num_boxes):
        assert float(losses['enc_loss_bbox']) == 0


def test_trains_in_bfloat16() -> None:
    model = build_tiny(base=BASE)
    with torch.autocast('cpu', torch.bfloat16):
        losses = training_losses(model, make_batch())
    total_loss(losses).backward()
    assert all(value.isfinite() for value in flat_losses(losses).values())
    assert without_gradient(model) == []
