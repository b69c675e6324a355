import time

import pytest
import torch
from helpers.toy_ranks import results_of_ranks
from torch import distributed as dist

from mmext.engine.distributed import StepVote, Vote
from mmext.engine.distributed.vote import checksum

pytestmark = pytest.mark.xdist_group('processes')


def test_the_largest_vote_counts(tmp_path):
    votes = [
        (Vote.OK, Vote.OK),
        (Vote.OK, Vote.GRADIENTS),
        (Vote.ERROR, Vote.GRADIENTS),
        (Vote.OK, Vote.OK),
    ]

    def run(rank):
        vote = StepVote(dist.group.WORLD)
        cast = [vote.cast(pair[rank]).name for pair in votes]
        return cast, vote.exchange({'from': rank})

    expected = ['OK', 'GRADIENTS', 'ERROR', 'OK']
    for result in results_of_ranks(run, tmp_path):
        # Objects come in the order of ranks.
        assert result['value'] == [expected, [{'from': 0}, {'from': 1}]]


@pytest.mark.slow
def test_who_fails_does_not_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr('mmext.engine.distributed.vote._FAILED_TIMEOUT_S', 1)

    def run(rank):
        vote = StepVote(dist.group.WORLD)
        if rank == 1:
            time.sleep(3)
        else:
            vote.cast(Vote.ERROR)

    first, second = results_of_ranks(run, tmp_path)
    assert first['error'] == 'PeerError'
    assert second == {'value': None}


@pytest.mark.parametrize(
    'dtype',
    [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
    ],
)
def test_checksum_sees_every_bit(dtype):
    if dtype.is_floating_point or dtype.is_complex:
        value = torch.randn(3, 5).to(dtype)
    else:
        value = torch.randint(0, 2, (3, 5)).to(dtype)
    same = value.clone()
    assert checksum(value).dtype == torch.int64
    assert torch.equal(checksum(value), checksum(same))
    same.view(-1)[7] = (
        value.view(-1)[7] + 1 if dtype != torch.bool else (~value.view(-1)[7])
    )
    assert not torch.equal(checksum(value), checksum(same))


def test_checksum_sees_what_sums_do_not():
    a = torch.tensor([0.1, 0.2, 0.3])
    assert checksum(a) != checksum(a[[1, 0, 2]])
    tiny = a.clone()
    tiny[0] = torch.nextafter(tiny[0], torch.tensor(1.0))
    assert checksum(a) != checksum(tiny)
    assert checksum(torch.tensor([0.0])) != checksum(torch.tensor([-0.0]))
    nan = torch.tensor([float('nan')])
    assert checksum(nan) == checksum(nan.clone())
