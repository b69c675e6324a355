"""CO-DINO against recorded runs of the public port.

``tests/oracles/codetr_tiny*.pt`` hold a small model's weights, a batch and
the detections of all three heads, ``codetr_arange.pt`` every loss and every
gradient norm of a training step. The port fills a co-head's missing positives
with random negatives; it was recorded, and is compared here, with
``torch.arange`` in the place of ``torch.randperm``.
"""

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers.tiny_co_dino import flat_losses, tiny_model_cfg, total_loss
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

ORACLES = Path(__file__).parents[2] / 'oracles'
# The recorded model: our own config with the numbers that the record has.
_PROPOSALS = {'nms_pre': 100, 'max_per_img': 60}
_LAYERS = {'num_layers': 2, 'num_heads': 8, 'feedforward_channels': 64}
RECORDED = {
    'num_classes': 7,
    'backbone': {'frozen_stages': -1},
    'query_head': {
        'num_queries': 40,
        'max_co_queries': 300,
        'dn_cfg': {
            'label_noise_scale': 1e-9,
            'box_noise_scale': 1e-9,
            'group_cfg': {'num_dn_queries': 100},
        },
        'transformer': {'encoder': _LAYERS, 'decoder': _LAYERS},
    },
    'train_cfg': {
        'rpn_head': {'sampler': {'type': 'mmdet.PseudoSampler'}},
        'rpn_proposal': _PROPOSALS,
        'roi_head': {'sampler': {'num': 100000, 'pos_fraction': 1.0}},
    },
    'test_cfg': {
        'query_head': {'max_per_img': 100},
        'rpn_head': _PROPOSALS,
    },
}


@pytest.fixture(scope='module', params=['onednn', 'pytorch'], autouse=True)
def products(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both kinds of matrix products."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('MMEXT_OPS', request.param)
        patch.setattr('mmext.ops.linear.LEAST', 1)
        yield


@pytest.fixture(scope='module', params=['codetr_tiny', 'codetr_tiny_empty'])
def record(request: pytest.FixtureRequest) -> dict:
    path, steps = ORACLES / f'{request.param}.pt', ORACLES / 'codetr_arange.pt'
    return {
        **torch.load(path, weights_only=True),
        **torch.load(steps, weights_only=True)[path.name],
    }


def _model(record: dict) -> torch.nn.Module:
    init_default_scope('mmdet')
    model = MODELS.build(tiny_model_cfg(**RECORDED))
    model.load_state_dict(record['state_dict'], strict=True)
    return model


def _batch(record: dict) -> dict:
    samples = []
    for gt in record['gt']:
        sample = DetDataSample(metainfo=dict(gt['meta']))
        sample.gt_instances = InstanceData(
            bboxes=gt['bboxes'].clone(), labels=gt['labels'].clone()
        )
        sample.ignored_instances = InstanceData(
            bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long)
        )
        samples.append(sample)
    return {'inputs': list(record['inputs']), 'data_samples': samples}


@pytest.fixture(scope='module')
def model(record: dict, products: None) -> torch.nn.Module:
    """The model after a training step, with gradients."""
    model = _model(record).train()
    data = model.data_preprocessor(_batch(record), True)
    with mock.patch('torch.randperm', torch.arange):
        model.step_losses = model.loss(data['inputs'], data['data_samples'])
    total_loss(model.step_losses).backward()
    return model


def test_every_loss(record, model) -> None:
    expected = {k: float(v) for k, v in record['losses'].items()}
    results = {k: float(v) for k, v in flat_losses(model.step_losses).items()}
    assert len(expected) == 60
    assert results == pytest.approx(expected, rel=1e-5, abs=1e-7)
    total = float(total_loss(model.step_losses))
    assert total == pytest.approx(record['loss'], rel=1e-5)


def test_every_gradient_norm(record, model) -> None:
    norms = {
        name: None if p.grad is None else float(p.grad.norm())
        for name, p in model.named_parameters()
    }
    assert set(norms) == set(record['grad_norms'])
    for name, expected in record['grad_norms'].items():
        if expected is None:
            assert norms[name] is None, name
        else:
            # Below 1e-5 it is what cancellation left over.
            assert norms[name] == pytest.approx(
                float(expected), rel=1e-4, abs=1e-5
            ), name


@pytest.mark.parametrize('eval_module', ['detr', 'one-stage', 'two-stage'])
def test_predictions_of_each_head(record, eval_module: str) -> None:
    model = _model(record).eval()
    model.eval_module = eval_module
    data = model.data_preprocessor(_batch(record), False)
    with torch.no_grad():
        samples = model.predict(data['inputs'], data['data_samples'])
    for sample, expected in zip(samples, record['predict'][eval_module]):
        instances = sample.pred_instances
        torch.testing.assert_close(
            instances.scores, expected['scores'], rtol=1e-5, atol=1e-6
        )
        # Order among equal scores is free: sort both the same way.
        ours, theirs = _order(instances.bboxes), _order(expected['bboxes'])
        torch.testing.assert_close(
            instances.bboxes[ours],
            expected['bboxes'][theirs],
            rtol=0,
            atol=1e-3,
        )
        assert torch.equal(instances.labels[ours], expected['labels'][theirs])


def _order(boxes: torch.Tensor) -> torch.Tensor:
    """A permutation that depends on the boxes, not on their order."""
    keys = (boxes.double() * 64).round()
    weights = keys.new_tensor([1.0, 4099.0, 4099.0**2, 4099.0**3])
    return (keys * weights).sum(1).argsort()
