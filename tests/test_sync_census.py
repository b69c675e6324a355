"""The census finds what would wait, and nothing else."""

import pytest
import torch
from helpers.sync_census import SyncCensus

X = torch.arange(6.0).view(2, 3)
MASK = X > 2

WAITS = {
    'item': lambda: X.sum().item(),
    'bool': lambda: bool(X.any()),
    'float': lambda: float(X.sum()),
    'nonzero': lambda: X.nonzero(),
    'where': lambda: torch.where(MASK),
    'mask': lambda: X[MASK],
    'masked_select': lambda: X.masked_select(MASK),
    'write': lambda: X.clone().index_put_((MASK,), torch.tensor(1.0)),
    'unique': lambda: X.unique(),
    'bincount': lambda: X.long().flatten().bincount(),
    'equal': lambda: torch.equal(X, X),
    'repeat': lambda: X.repeat_interleave(torch.tensor([1, 2]), 0),
    'list': lambda: X.new_tensor([1.0, 2.0]),
    'max': lambda: max(X.sum(), 0.5),
    'tolist': lambda: X.tolist(),
    'cpu': lambda: X.cpu(),
}
GOES_ON = {
    'where': lambda: torch.where(MASK, X, 0),
    'masked_fill': lambda: X.masked_fill(MASK, 0),
    'gather': lambda: X.gather(1, torch.zeros(2, 1, dtype=torch.long)),
    'index_select': lambda: X.index_select(0, torch.zeros(2).int()),
    'indices': lambda: X[torch.zeros(2, dtype=torch.long)],
    'sum': lambda: (X * MASK).sum() / X.numel(),
    'full': lambda: X.new_full((), 0.5),
    'arange': lambda: torch.arange(3) == 1,
}


@pytest.mark.parametrize('name', WAITS)
def test_finds(name):
    with SyncCensus() as census:
        WAITS[name]()
    assert census.ops


@pytest.mark.parametrize('name', GOES_ON)
def test_leaves(name):
    with SyncCensus() as census:
        GOES_ON[name]()
    assert census.ops == []
