"""CO-DINO against recorded runs of the public port.

``tests/oracles/codetr_tiny*.pt`` hold a small model's weights, a batch, and
what the public port computed from them: every loss, every gradient norm and
the detections of all three heads. The port fills a co-head's missing
positives with *random* negatives, and these join self-attention and the
classification loss. What depends on that draw is compared with its
distribution over draws, everything else with the recorded number.
"""

from pathlib import Path

import pytest
import torch
from helpers.tiny_co_dino import flat_losses, total_loss
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

from mmext.models.co_dino import translate_codetr_config

ORACLES = Path(__file__).parents[2] / 'oracles'
NUM_DRAWS = 12

# Per record: losses that depend on the random fill. In the second record, the
# second head needs no fill in the only image with boxes.
RANDOM_LOSSES = {
    'codetr_tiny': ('_aux0', '_aux1'),
    'codetr_tiny_empty': ('_aux0', 'loss_cls_aux1'),
}
# Parameters that no query of a co-head reaches.
APART_FROM_CO_QUERIES = (
    'rpn_head.',
    'roi_head.',
    'bbox_head.',
    'query_head.cls_branches.2',
    'query_head.reg_branches.2',
    'query_head.downsample.',
    'query_head.dn_generator.',
    'query_head.transformer.query_embed',
    'query_head.transformer.enc_output',
)


@pytest.fixture(
    scope='module',
    params=[
        'codetr_tiny',
        pytest.param('codetr_tiny_empty', marks=pytest.mark.slow),
    ],
)
def record(request: pytest.FixtureRequest) -> dict:
    path = ORACLES / f'{request.param}.pt'
    return {'name': request.param, **torch.load(path, weights_only=True)}


def _model(record: dict) -> torch.nn.Module:
    init_default_scope('mmdet')
    model = MODELS.build(translate_codetr_config(record['model_cfg']))
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


def _step(model: torch.nn.Module, record: dict, seed: int) -> dict:
    """Losses, their sum and gradient norms of one training step."""
    torch.manual_seed(seed)
    model.train()
    model.zero_grad()
    data = model.data_preprocessor(_batch(record), True)
    losses = model.loss(data['inputs'], data['data_samples'])
    total = total_loss(losses)
    total.backward()
    norms = {
        name: None if p.grad is None else float(p.grad.norm())
        for name, p in model.named_parameters()
    }
    flat = {k: float(v.detach()) for k, v in flat_losses(losses).items()}
    return {'losses': flat, 'total': float(total.detach()), 'norms': norms}


@pytest.fixture(scope='module')
def steps(record: dict) -> list[dict]:
    """Several steps that differ in the random fill only."""
    model = _model(record)
    return [_step(model, record, seed) for seed in range(NUM_DRAWS)]


def _matches(recorded: float, draws: list[float], rel: float) -> bool:
    """Whether a number is a draw, or the one that all draws agree on."""
    values = torch.tensor(draws, dtype=torch.float64)
    # Below 1e-5 a gradient norm is what cancellation left over.
    tolerance = max(rel * abs(recorded), 1e-5)
    deviation = abs(recorded - float(values.mean()))
    return deviation <= 5 * float(values.std()) + tolerance


def test_every_loss_has_its_name_and_value(record, steps) -> None:
    recorded = {k: float(v) for k, v in record['losses'].items()}
    assert set(steps[0]['losses']) == set(recorded)
    random = 0
    for name, value in recorded.items():
        draws = [step['losses'][name] for step in steps]
        if name.endswith(RANDOM_LOSSES[record['name']]):
            random += 1
            assert _matches(value, draws, 1e-4), name
            # The fill is a perturbation: no draw is far away.
            assert draws[0] == pytest.approx(value, rel=0.15), name
        else:
            for draw in draws:
                assert draw == pytest.approx(value, rel=1e-4, abs=1e-7), name
    assert (
        random == {'codetr_tiny': 12, 'codetr_tiny_empty': 8}[record['name']]
    )


def test_sum_of_losses(record, steps) -> None:
    for step in steps:
        assert step['total'] == pytest.approx(float(record['loss']), rel=1e-4)


def test_every_gradient_norm(record, steps) -> None:
    exact = 0
    for name, recorded in record['grad_norms'].items():
        draws = [step['norms'][name] for step in steps]
        if recorded is None:
            assert draws == [None] * NUM_DRAWS, name
            continue
        recorded = float(recorded)
        assert _matches(recorded, draws, 1e-3), name
        if name.startswith(APART_FROM_CO_QUERIES):
            exact += 1
            for draw in draws:
                assert draw == pytest.approx(recorded, rel=1e-3, abs=1e-5)
    assert exact >= 40


@pytest.mark.parametrize('eval_module', ['detr', 'one-stage', 'two-stage'])
def test_predictions_of_each_head(record, eval_module: str) -> None:
    model = _model(record).eval()
    model.eval_module = eval_module
    data = model.data_preprocessor(_batch(record), False)
    with torch.no_grad():
        samples = model.predict(data['inputs'], data['data_samples'])
    for sample, expected in zip(samples, record['predict'][eval_module]):
        found = sample.pred_instances
        torch.testing.assert_close(
            found.scores, expected['scores'], rtol=1e-5, atol=1e-6
        )
        # Order among equal scores is free: sort both the same way.
        ours, theirs = _order(found.bboxes), _order(expected['bboxes'])
        torch.testing.assert_close(
            found.bboxes[ours], expected['bboxes'][theirs], rtol=0, atol=1e-3
        )
        assert torch.equal(found.labels[ours], expected['labels'][theirs])


def _order(boxes: torch.Tensor) -> torch.Tensor:
    """A permutation that depends on the boxes, not on their order."""
    keys = (boxes.double() * 64).round()
    weights = keys.new_tensor([1.0, 4099.0, 4099.0**2, 4099.0**3])
    return (keys * weights).sum(1).argsort()
