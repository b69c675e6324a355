"""Metrics against plain NumPy on the pixels of all images together."""

import copy
import math

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, PixelData

from mmext.evaluation import (
    ClassificationTaskMetric,
    DepthMetric,
    RegressionTaskMetric,
    SurfaceNormalMetric,
)

SIZES = [(6, 8), (5, 7), (9, 4), (3, 3), (6, 8)]


def samples() -> list[BaseDataElement]:
    """Images of different sizes, some pixels invalid, one image wholly."""
    generator = torch.Generator().manual_seed(3)
    result = []
    for number, (height, width) in enumerate(SIZES):
        depth = torch.rand(1, height, width, generator=generator) * 5 + 0.2
        normal = torch.randn(3, height, width, generator=generator)
        normal /= normal.norm(dim=0)
        holes = torch.rand(height, width, generator=generator) < 0.3
        if number == 3:
            holes[:] = True
        noise = torch.randn(4, height, width, generator=generator)
        sample = BaseDataElement()
        fields = {
            'pred_depth': depth + 0.3 * noise[:1],
            'pred_normal': 2 * normal + 0.5 * noise[1:],
            'gt_depth': depth.masked_fill(holes, 0),
            'gt_normal': normal.masked_fill(holes, 0),
        }
        for name, data in fields.items():
            sample.set_data({name: PixelData(data=data)})
        result.append(sample)
    return result


def run(metric, elements, ranks: int = 1) -> dict:
    """Evaluate as an evaluator does; with the gathering of several ranks."""
    results = []
    for rank in range(ranks):
        own = copy.deepcopy(metric)
        for element in elements[rank::ranks]:
            own.process(None, [element.to_dict()])
        results.append(own.results)
    # As collect_results orders them: one of each rank at a time.
    metric.results = [
        part[i]
        for i in range(max(map(len, results)))
        for part in results
        if i < len(part)
    ]
    return metric.evaluate(len(elements))


def pixels(elements, name: str) -> np.ndarray:
    """All pixels of the set, ``(C, n)``."""
    parts = [element.get(name).data.flatten(1) for element in elements]
    return torch.cat(parts, 1).double().numpy()


@pytest.mark.parametrize('ranks', [1, 2])
def test_depth(ranks):
    elements = samples()
    metrics = run(DepthMetric(), elements, ranks)
    true, pred = (pixels(elements, f'{k}_depth')[0] for k in ('gt', 'pred'))
    error = np.abs(pred - true)[true > 0]
    expected = {
        'depth/abs_err': error.mean(),
        'depth/rel_err': (error / true[true > 0]).mean(),
        'depth/rmse': np.sqrt((error**2).mean()),
    }
    assert metrics == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize('ranks', [1, 2])
def test_normals(ranks):
    elements = samples()
    metrics = run(SurfaceNormalMetric(), elements, ranks)
    true, pred = (pixels(elements, f'{k}_normal') for k in ('gt', 'pred'))
    valid = np.linalg.norm(true, axis=0) > 0
    true, pred = true[:, valid], pred[:, valid]
    cosine = (true * pred).sum(0) / np.linalg.norm(pred, axis=0)
    cosine /= np.linalg.norm(true, axis=0)
    angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    assert metrics.pop('normal/median') == pytest.approx(
        np.median(angle), abs=0.3
    )
    expected = {'normal/mean': angle.mean()}
    for limit in (11.25, 22.5, 30):
        share = 100 * (angle < limit).mean()
        expected[f'normal/within_{limit:g}'] = share
    assert metrics == pytest.approx(expected, rel=1e-6)


def one_normal(pred: torch.Tensor, true: torch.Tensor) -> dict:
    sample = BaseDataElement()
    sample.set_data({'pred_normal': PixelData(data=pred)})
    sample.set_data({'gt_normal': PixelData(data=true)})
    return run(SurfaceNormalMetric(), [sample])


def test_median_of_many_pixels_is_right_to_its_resolution():
    generator = torch.Generator().manual_seed(0)
    angle = torch.rand(1, 100, 101, generator=generator) * 80 + 0.01
    pred = torch.cat([angle.deg2rad().sin(), angle.deg2rad().cos(), 0 * angle])
    true = torch.zeros_like(pred)
    true[1] = 1
    metrics = one_normal(pred, true)
    median = float(angle.median())
    assert abs(metrics['normal/median'] - median) < 0.05
    assert metrics['normal/mean'] == pytest.approx(
        float(angle.mean()), rel=1e-5
    )


def test_normals_whose_components_cancel_are_valid():
    true = torch.tensor([0.8, -0.6, -0.2])[:, None, None]
    metrics = one_normal(true, true)
    assert metrics['normal/mean'] == pytest.approx(0, abs=1e-6)
    assert metrics['normal/within_11.25'] == 100


def test_predictions_without_direction_are_not_right():
    true = torch.tensor([0.0, 0.0, -1.0])[:, None, None]
    assert one_normal(0 * true, true)['normal/mean'] == 90
    assert one_normal(-true, true)['normal/mean'] == pytest.approx(180)
    metrics = one_normal(true * float('nan'), true)
    assert np.isnan(metrics['normal/mean'])
    assert np.isnan(metrics['normal/median'])
    assert metrics['normal/within_30'] == 0


def test_no_valid_pixel_is_nan():
    elements = samples()[3:4]
    for metric in (DepthMetric(), SurfaceNormalMetric()):
        assert np.isnan(list(run(metric, elements).values())).all()


def test_results_of_an_image_are_small():
    metric = SurfaceNormalMetric()
    metric.process(None, [samples()[0].to_dict()])
    assert sum(part.nbytes for part in metric.results[0]) < 15_000


def values(name: str, pairs) -> list[BaseDataElement]:
    result = []
    for pred, true in pairs:
        sample = BaseDataElement()
        sample.set_data({f'pred_{name}': torch.as_tensor(pred)})
        sample.set_data({f'gt_{name}': torch.as_tensor(true)})
        result.append(sample)
    return result


def test_classification():
    pairs = [(1, 1), (0, 1), (2, 2), (0, 0), (0, 255)]
    elements = values('income', pairs)
    metrics = run(ClassificationTaskMetric(target='gt_income'), elements)
    assert metrics == {'income/accuracy': 75.0}
    with pytest.raises(ValueError, match='pred_label must be one class index'):
        run(ClassificationTaskMetric(), values('label', [(0.5, 1)]))


def test_regression():
    pairs = [([1.0, 2.0], [0.0, 4.0]), ([3.0, 9.0], [3.0, math.nan])]
    elements = values('hours', pairs)
    metrics = run(RegressionTaskMetric(target='gt_hours'), elements)
    rmse = np.sqrt(5 / 3)
    assert metrics == pytest.approx({'hours/mae': 1.0, 'hours/rmse': rmse})


def test_samples_without_truth_do_not_count():
    elements = samples()
    for metric in (DepthMetric, SurfaceNormalMetric):
        expected = run(metric(), elements[:2])
        partial = [*copy.deepcopy(elements[:2]), elements[4].clone()]
        for name in ('gt_depth', 'gt_normal'):
            partial[2].pop(name)
        assert run(metric(), partial, ranks=2) == pytest.approx(expected)
    labels = values('label', [(1, 1), (0, 1), (1, 1)])
    labels[2].pop('gt_label')
    assert run(ClassificationTaskMetric(), labels) == {'label/accuracy': 50.0}
    numbers = values('value', [(1.0, 3.0), (1.0, 3.0)])
    numbers[1].pop('gt_value')
    assert run(RegressionTaskMetric(), numbers)['value/mae'] == 2


def test_wrong_fields_are_named():
    (sample,) = values('value', [(1.0, [1.0, 2.0])])
    with pytest.raises(ValueError, match=r'pred_value and gt_value .* \(2,\)'):
        run(RegressionTaskMetric(), [sample])
    with pytest.raises(ValueError, match="must begin with 'gt_', got 'x'"):
        RegressionTaskMetric(target='x')
    with pytest.raises(KeyError, match='must have pred_depth'):
        run(DepthMetric(), [sample])
