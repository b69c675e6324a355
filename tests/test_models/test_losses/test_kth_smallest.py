"""Selection against sorting."""

import pytest
import torch
from sync_census import SyncCensus

from mmext.models.losses._kth_smallest import host_kth_smallest, kth_smallest

BOTH = pytest.mark.parametrize('search', [kth_smallest, host_kth_smallest])


@BOTH
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_matches_sort(dtype, search):
    values = torch.rand(501, dtype=dtype)
    values[::7] = values[3]
    values[::11] = 0
    values[::13] = torch.inf
    values[5] = torch.finfo(dtype).tiny / 2
    expected = values.sort().values
    for index in (0, 1, 17, 250, 460, 500):
        found = search(values.view(3, 167), torch.tensor(index))
        assert found.shape == ()
        assert found == expected[index]
        assert found.dtype == dtype


@BOTH
def test_single_and_large_numbers(search):
    assert search(torch.tensor([3.5]), torch.tensor(0)) == 3.5
    big = torch.tensor([1e38, 3e38, 2e38])
    assert search(big, torch.tensor(1)) == big[2]


@BOTH
def test_not_contiguous(search):
    values = torch.rand(6, 8)[:, ::2].t()
    before = values.clone()
    assert search(values, torch.tensor(23)) == values.max()
    assert torch.equal(values, before)


def test_does_not_wait():
    values, index = torch.rand(40), torch.tensor(3)
    with SyncCensus() as census:
        kth_smallest(values, index)
    assert census.ops == []
