"""Class weights against the formulas, and published numbers."""

import math

import pytest

from mmext.checks.labels.class_weights import (
    CLASS_WEIGHT_KINDS,
    class_weights,
)

PIXELS = [4000, 1000, 50]
AREA = [5050, 5050, 2500]


def mean_1(weights: list[float]) -> list[float]:
    return [3 * weight / sum(weights) for weight in weights]


@pytest.mark.parametrize(
    ('kind', 'weights'),
    [
        ('inverse', mean_1([1 / n for n in PIXELS])),
        (
            'median_frequency',
            [(1000 / 5050) * a / n for n, a in zip(PIXELS, AREA)],
        ),
        ('enet', [1 / math.log(1.02 + n / sum(PIXELS)) for n in PIXELS]),
        ('effective_number', mean_1([1 / (1 - 0.9999**n) for n in PIXELS])),
    ],
)
def test_formulas(kind, weights):
    results = class_weights(kind, PIXELS, AREA)
    assert results == pytest.approx(weights, abs=1e-4)


def test_log_gives_weights_of_cityscapes_authors():
    """Their 19 weights are those of these counts, as far as counts go."""
    given = [0.8373, 0.918, 0.866, 1.0345, 1.0166, 0.9969, 0.9754, 1.0489]
    given += [0.8786, 1.0023, 0.9539, 0.9843, 1.1116, 0.9037, 1.0865]
    given += [1.0955, 1.0865, 1.1529, 1.0507]
    # Counts whose logarithm is inverse to the weights, road 2 * 10 ** 9.
    scale = math.log(2.04e9) * given[0]
    pixels = [round(math.exp(scale / weight)) for weight in given]
    weights = class_weights('log', pixels, pixels)
    assert weights == pytest.approx(given, abs=2e-3)


@pytest.mark.parametrize('kind', CLASS_WEIGHT_KINDS)
def test_absent_classes_get_nothing(kind):
    weights = class_weights(kind, [400, 0, 100], [500, 0, 500])
    assert weights[1] == 0
    assert weights[2] > weights[0] > 0


@pytest.mark.parametrize('kind', sorted(CLASS_WEIGHT_KINDS))
def test_a_single_one_has_a_weight(kind):
    """Objects may be few, other than pixels."""
    first, second = class_weights(kind, [1, 50], [60, 60])
    assert math.isfinite(first)
    assert first > second > 0
