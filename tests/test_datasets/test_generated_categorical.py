"""Categories with hidden embeddings: reproducible, learnable, noisy."""

import pickle

import numpy as np
import pytest
import torch
from mmengine.registry import DATASETS

from mmext.datasets.generated import GeneratedCategoricalDataset


def columns(dataset) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    items = [dataset[index] for index in range(len(dataset))]
    targets = {
        name: np.array([float(i['data_samples'].get(name)) for i in items])
        for name in ('gt_income', 'gt_married', 'gt_hours')
    }
    return np.array([item['inputs'].numpy() for item in items]), targets


def test_items():
    dataset = DATASETS.build(
        dict(
            type='mmext.GeneratedCategoricalDataset',
            _scope_='mmseg',
            num_samples=300,
            cardinalities=(5, 3),
        )
    )
    assert isinstance(dataset, GeneratedCategoricalDataset)
    assert len(dataset) == 300
    features, _ = columns(dataset)
    assert features.shape == (300, 2)
    assert set(features[:, 0]) == set(range(5))
    assert set(features[:, 1]) == set(range(3))
    item = dataset[7]
    sample = item['data_samples']
    assert item['inputs'].dtype == torch.int64
    assert sample.gt_income.dtype == sample.gt_married.dtype == torch.int64
    assert sample.gt_hours.dtype == torch.float32
    assert sample.gt_hours.shape == sample.gt_income.shape == ()
    assert sample.sample_idx == 7
    # A view of the whole set would be some kilobytes more.
    assert len(pickle.dumps(item['inputs'])) < 1000
    with pytest.raises(IndexError):
        dataset[300]


def test_targets_are_standardised_functions_with_noise():
    """Without noise, the same categories give the same targets."""
    few = dict(num_samples=2000, cardinalities=(3, 2, 2))
    features, exact = columns(GeneratedCategoricalDataset(noise=0, **few))
    same, noisy = columns(GeneratedCategoricalDataset(noise=0.3, **few))
    np.testing.assert_array_equal(features, same)
    codes = features @ [4, 2, 1]
    for values in exact.values():
        for code in np.unique(codes):
            assert np.ptp(values[codes == code]) == 0
    error = noisy['gt_hours'] - exact['gt_hours']
    assert error.std() == pytest.approx(0.3, rel=0.1)
    large = GeneratedCategoricalDataset(num_samples=4000, noise=0)
    _, targets = columns(large)
    assert targets['gt_hours'].std() == pytest.approx(1, abs=0.1)
    assert targets['gt_hours'].mean() == pytest.approx(0, abs=0.1)
    for name in ('gt_income', 'gt_married'):
        assert 0.4 < targets[name].mean() < 0.6


def test_splits_share_the_function_and_not_the_samples():
    few = dict(num_samples=1500, cardinalities=(3, 2, 2), noise=0)
    tables = []
    for split in ('train', 'val'):
        dataset = GeneratedCategoricalDataset(split=split, **few)
        features, targets = columns(dataset)
        tables.append(dict(zip(features @ [4, 2, 1], targets['gt_hours'])))
    assert tables[0] == tables[1]
    one, other = (
        columns(GeneratedCategoricalDataset(split=split, **few))[0]
        for split in ('train', 'test')
    )
    assert (one != other).any()
    again = columns(GeneratedCategoricalDataset(**few))[0]
    np.testing.assert_array_equal(one, again)
    seeded = columns(GeneratedCategoricalDataset(seed=1, **few))[0]
    assert (one != seeded).any()


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(num_samples=0), 'num_samples must be at least 1, got 0'),
        (dict(cardinalities=(4, 1)), r'at least 2, .* got \(4, 1\)'),
        (dict(split='dev'), "split must be one of .* got 'dev'"),
        (dict(noise=-1), 'noise must be at least 0, got -1'),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        GeneratedCategoricalDataset(**settings)
