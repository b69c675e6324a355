"""Sampling grids and bilinear taps of single axes."""

import pytest
import torch

from mmext.ops._roi_samples import (
    SampleGrid,
    axis_taps,
    interpolate_axis,
    sample_grid,
)


def grid_of(start: float, width: float, count: int) -> SampleGrid:
    return SampleGrid(
        torch.full((1, 2), start),
        torch.full((1, 2), width),
        torch.full((1, 2), count),
    )


def dense(index: torch.Tensor, weight: torch.Tensor, size: int):
    return weight.new_zeros(*weight.shape[:2], size).scatter_add_(
        2, index, weight
    )


def test_sample_grid_counts_started_pixels():
    rois = torch.tensor([[0, 4.0, 8.0, 24.0, 20.0]])
    grid = sample_grid(rois, (3, 2), 0.25, 0, aligned=True)
    assert grid.start.tolist() == [[1.5, 0.5]]
    assert grid.width.tolist() == [[1.0, 2.5]]
    assert grid.count.tolist() == [[1, 3]]


def test_sample_grid_takes_the_ratio_as_it_is():
    rois = torch.tensor([[0, 4.0, 8.0, 24.0, 20.0]])
    grid = sample_grid(rois, (3, 2), 0.25, 4, aligned=False)
    assert grid.start.tolist() == [[2.0, 1.0]]
    assert grid.count.tolist() == [[4, 4]]


def test_sample_grid_widens_small_regions_only_unaligned():
    rois = torch.tensor([[0, 4.0, 4.0, 4.0, 5.0]])
    grid = sample_grid(rois, (1, 1), 1.0, 0, aligned=False)
    assert grid.width.tolist() == [[1.0, 1.0]]
    grid = sample_grid(rois, (1, 1), 1.0, 0, aligned=True)
    assert grid.count.tolist() == [[1, 0]]


def test_sample_grid_rejects_reversed_regions():
    rois = torch.tensor([[0, 0.0, 0, 1, 1], [0, 0.0, 4, 1, 3]])
    with pytest.raises(ValueError, match=r'must not end before.*index 1'):
        sample_grid(rois, (1, 1), 1.0, 0, aligned=True)


def test_positions():
    place, exists = grid_of(1.0, 2.0, 2).positions(0, bins=2)
    assert place.tolist() == [[[1.5, 2.5], [3.5, 4.5]]]
    assert exists.all()
    assert grid_of(1.0, 2.0, 0).positions(0, bins=2)[0].shape == (1, 2, 0)


def test_interpolate_axis_at_the_border():
    place = torch.tensor([-1.1, -1, -0.5, 0, 3, 3.5, 4, 4.1])
    low, high, near, far = interpolate_axis(place, 4)
    assert low.tolist() == [0, 0, 0, 0, 3, 3, 3, 3]
    assert high.tolist() == [1, 1, 1, 1, 3, 3, 3, 3]
    assert near.tolist() == [0, 1, 1, 1, 1, 1, 1, 0]
    assert not far.any()


@pytest.mark.parametrize(
    ('start', 'width', 'count', 'terms'),
    [
        (1.2, 3.0, 3, 4),  # adjacent samples share pixels
        (1.2, 3.0, 1, 2),  # one sample
        (0.2, 5.0, 2, 4),  # samples too far apart to share
        (-4.0, 4.0, 4, 5),  # the first bin is outside
        (30.0, 2.0, 2, 1),  # everything is outside
    ],
)
def test_axis_taps_are_the_mean_of_the_samples(start, width, count, terms):
    grid = grid_of(start, width, count)
    index, weight = axis_taps(grid, 0, 2, 12)
    assert index.shape == (1, 2, terms)
    place, _ = grid.positions(0, 2)
    low, high, near, far = interpolate_axis(place, 12)
    expected = dense(low, near, 12) + dense(high, far, 12)
    torch.testing.assert_close(dense(index, weight, 12), expected / count)


def test_axis_taps_without_samples():
    index, weight = axis_taps(grid_of(1.0, 0.0, 0), 0, 3, 8)
    assert index.shape == weight.shape == (1, 3, 1)
    assert not weight.any()


def test_axis_taps_mix_counts():
    """A region with fewer samples than another keeps its own mean."""
    one, four = grid_of(2.3, 1.0, 1), grid_of(0.1, 3.5, 4)
    both = SampleGrid(*(torch.cat(pair) for pair in zip(one, four)))
    index, weight = axis_taps(both, 1, 2, 9)
    together = dense(index, weight, 9)
    for row, grid in enumerate((one, four)):
        alone = dense(*axis_taps(grid, 1, 2, 9), 9)
        torch.testing.assert_close(together[row : row + 1], alone)
