import time

import pytest
from helpers.toy_ranks import results_of_ranks
from torch import distributed as dist

from mmext.engine.distributed import StepVote, Vote

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
