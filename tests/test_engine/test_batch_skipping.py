import pickle

import pytest
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import BatchSampler, DataLoader, Dataset

from mmext.engine.batch_skipping import (
    SkippableBatches,
    make_skippable,
    set_sampler_epoch,
    skip_batches,
)


class Noting(Dataset):
    """Notes which samples are read."""

    def __init__(self, size=10):
        self.size, self.read = size, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.read.append(index)
        return index


class PairsFirst(BatchSampler):
    """Batches of unequal size, so that skipping indices would not do."""

    def __iter__(self):
        indices = list(self.sampler)
        yield indices[:1]
        yield from (indices[i : i + 3] for i in range(1, len(indices), 3))


def make(kind='default', size=10, **kwargs):
    data = Noting(size)
    if kind == 'infinite':
        sampler = InfiniteSampler(data, seed=1)
    else:
        sampler = DefaultSampler(data, seed=1)
    if kind == 'pairs':
        loader = DataLoader(
            data, batch_sampler=PairsFirst(sampler, 3, False), **kwargs
        )
    else:
        loader = DataLoader(data, batch_size=3, sampler=sampler, **kwargs)
    return data, loader


def flat(lists):
    return [item for part in lists for item in part]


def batches(loader):
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize('kind', ['default', 'pairs'])
def test_skips_batches_and_reads_nothing_of_them(kind):
    full = batches(make(kind)[1])
    data, loader = make(kind)
    make_skippable(loader).skip_next(2)
    assert batches(loader) == full[2:]
    assert data.read == flat(full[2:])
    # only once; the length is that of the epoch
    assert batches(loader) == full
    assert len(loader) == len(full)


def test_worker_processes_prefetch_behind_the_skip():
    full = batches(make()[1])
    _, loader = make(num_workers=2, persistent_workers=True)
    make_skippable(loader).skip_next(3)
    assert batches(loader) == full[3:]
    assert batches(loader) == full


def test_all_skipped_is_an_empty_pass():
    _, loader = make()
    make_skippable(loader).skip_next(4)
    assert batches(loader) == []
    assert len(batches(loader)) == 4


def test_loader_keeps_its_attributes():
    _, loader = make()
    sampler, inner = loader.sampler, loader.batch_sampler
    wrapper = make_skippable(loader)
    assert make_skippable(loader) is wrapper
    assert loader.sampler is sampler
    assert (loader.batch_size, loader.batch_sampler.drop_last) == (3, False)
    assert loader.batch_sampler.sampler is inner.sampler


def test_loader_without_batches():
    data = Noting(4)
    loader = DataLoader(data, batch_size=None, sampler=[3, 1, 0, 2])
    make_skippable(loader).skip_next(1)
    assert [int(item) for item in loader] == [1, 0, 2]


def test_wrapper_can_be_pickled():
    wrapper = pickle.loads(pickle.dumps(SkippableBatches([[1]])))
    assert list(wrapper) == [[1]]
    with pytest.raises(AttributeError):
        wrapper.no_such_attribute  # noqa: B018


def test_rejects_negative_number():
    with pytest.raises(ValueError, match='num must not be negative, got -1'):
        SkippableBatches([]).skip_next(-1)


def endless(kind, num, size=10):
    """The first batches of epoch after epoch, as a loop takes them."""
    _, loader = make(kind, size)
    make_skippable(loader)
    result, epoch = [], 0
    while len(result) < num:
        set_sampler_epoch(loader, epoch)
        for batch in loader:
            result.append(batch.tolist())
            if len(result) == num:
                break
        epoch += 1
    return result


@pytest.mark.parametrize('kind', ['default', 'pairs', 'infinite'])
@pytest.mark.parametrize('num', [1, 3, 4, 5, 8, 9, 11])
def test_skip_batches_over_epochs(kind, num):
    expected = endless(kind, num + 3)[num:]
    data, loader = make(kind)
    epoch = skip_batches(loader, make_skippable(loader), num)
    result = []
    while len(result) < 3:
        result += batches_up_to(loader, 3 - len(result))
        epoch += 1
        set_sampler_epoch(loader, epoch)
    assert result == expected
    assert data.read == flat(expected)


def batches_up_to(loader, num):
    result = []
    for batch in loader:
        result.append(batch.tolist())
        if len(result) == num:
            break
    return result


def test_skip_batches_rejects_no_data():
    loader = DataLoader([], batch_sampler=[])
    with pytest.raises(ValueError, match='must have batches, got none'):
        skip_batches(loader, make_skippable(loader), 2)


def test_epoch_reaches_the_sampler_of_a_batch_sampler():
    _, loader = make('pairs')
    make_skippable(loader)
    set_sampler_epoch(loader, 5)
    assert loader.batch_sampler.sampler.epoch == 5
    set_sampler_epoch(DataLoader(Noting()), 5)  # has none
