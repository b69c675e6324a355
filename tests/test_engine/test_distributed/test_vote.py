import json
import time

import pytest
from helpers.toy_ranks import run_on_ranks
from torch import distributed as dist

from mmext.engine.distributed import PeerError, StepVote, Vote

pytestmark = pytest.mark.xdist_group('processes')


def on_two_ranks(function, tmp_path):
    def run():
        result = function(StepVote(dist.group.WORLD), dist.get_rank())
        (tmp_path / f'{dist.get_rank()}.json').write_text(json.dumps(result))

    ranks = run_on_ranks(run, 2, tmp_path / 'out')
    assert ranks.wait() == [0, 0], ranks.output(0) + ranks.output(1)
    return [json.loads((tmp_path / f'{r}.json').read_text()) for r in (0, 1)]


def test_the_largest_vote_counts(tmp_path):
    votes = [
        (Vote.OK, Vote.OK),
        (Vote.OK, Vote.GRADIENTS),
        (Vote.ERROR, Vote.GRADIENTS),
        (Vote.OK, Vote.OK),
    ]

    def run(vote, rank):
        return [vote.cast(pair[rank]).name for pair in votes]

    expected = ['OK', 'GRADIENTS', 'ERROR', 'OK']
    assert on_two_ranks(run, tmp_path) == [expected, expected]


def test_objects_are_exchanged_in_the_order_of_ranks(tmp_path):
    results = on_two_ranks(
        lambda vote, rank: vote.exchange({'from': rank}), tmp_path
    )
    assert results == [[{'from': 0}, {'from': 1}]] * 2


@pytest.mark.slow
def test_who_fails_does_not_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr('mmext.engine.distributed.vote._FAILED_TIMEOUT_S', 1)

    def run(vote, rank):
        if rank == 1:
            time.sleep(3)
            return 'came late'
        try:
            vote.cast(Vote.ERROR)
        except PeerError:
            return 'gave up'
        return 'voted'

    assert on_two_ranks(run, tmp_path) == ['gave up', 'came late']
