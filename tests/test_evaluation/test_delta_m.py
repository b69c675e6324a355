"""The mean gain over a baseline, by hand and through a runner's evaluator."""

import pytest
import torch
from mmengine.registry import EVALUATOR
from mmengine.structures import BaseDataElement

from mmext.evaluation import MultiTaskEvaluator, delta_m

# LibMTL's published ResNet-50 numbers, HPS and EW, against DWA.
BASE = {
    'segmentation/mIoU': 54.10,
    'segmentation/aAcc': 75.78,
    'depth/abs_err': 0.3771,
    'depth/rel_err': 0.1596,
    'normal/mean': 23.53,
    'normal/within_30': 72.06,
}
OTHER = {
    'segmentation/mIoU': 53.55,
    'segmentation/aAcc': 75.42,
    'depth/abs_err': 0.3811,
    'depth/rel_err': 0.1589,
    'normal/mean': 23.63,
    'normal/within_30': 71.87,
    'loss': 3.0,
}


def test_mean_over_values_then_over_tasks():
    segmentation = ((53.55 / 54.10 - 1) + (75.42 / 75.78 - 1)) / 2
    depth = ((1 - 0.3811 / 0.3771) + (1 - 0.1589 / 0.1596)) / 2
    normal = ((1 - 23.63 / 23.53) + (71.87 / 72.06 - 1)) / 2
    metrics = delta_m(OTHER, BASE)
    assert metrics['delta_m/depth'] == pytest.approx(100 * depth)
    mean = 100 * (segmentation + depth + normal) / 3
    assert metrics['delta_m'] == pytest.approx(mean)
    assert mean < 0


def test_one_value_of_a_task_weighs_as_much_as_two_of_another():
    base = {'a/mIoU': 50.0, 'a/aAcc': 50.0, 'b/rmse': 2.0}
    new = {'a/mIoU': 60.0, 'a/aAcc': 40.0, 'b/rmse': 1.0}
    assert delta_m(new, base)['delta_m'] == pytest.approx(25)


@pytest.mark.parametrize(
    ('baseline', 'message'),
    [
        ({}, 'baseline must have at least one value'),
        ({'depth/other': 1.0}, "must have 'other' of the baseline"),
        ({'depth/mae': 1.0}, "got 'depth/mae', which is none of"),
        ({'depth/rel_err': 0.0}, 'finite and not 0, got depth/rel_err=0.0'),
    ],
)
def test_bad_baselines_are_named(baseline, message):
    with pytest.raises(ValueError, match=message):
        delta_m(OTHER, baseline)


def test_direction_of_other_values_can_be_said():
    metrics = delta_m({'a/x': 3.0}, {'a/x': 2.0}, {'x': True})
    assert metrics == {'delta_m': 50.0, 'delta_m/a': 50.0}


@pytest.mark.parametrize('with_baseline', [True, False])
def test_evaluator_of_a_config(with_baseline):
    evaluator = EVALUATOR.build(
        dict(
            type='mmext.MultiTaskEvaluator',
            _scope_='mmseg',
            metrics=[
                dict(type='mmext.RegressionTaskMetric', target='gt_hours')
            ],
            baseline={'hours/mae': 2.0} if with_baseline else None,
        )
    )
    assert isinstance(evaluator, MultiTaskEvaluator)
    sample = BaseDataElement()
    sample.set_data({'pred_hours': torch.tensor(4.0)})
    sample.set_data({'gt_hours': torch.tensor(3.0)})
    evaluator.process([sample])
    metrics = evaluator.evaluate(1)
    gain = {'delta_m': 50.0, 'delta_m/hours': 50.0} if with_baseline else {}
    assert metrics == {'hours/mae': 1.0, 'hours/rmse': 1.0, **gain}
