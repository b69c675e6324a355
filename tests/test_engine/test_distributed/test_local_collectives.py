import json
import os

import pytest
import torch
from mmdet.utils import reduce_mean
from mmengine import dist as mm_dist
from torch import distributed as dist

from mmext.engine.distributed.local_collectives import local_collectives

pytestmark = pytest.mark.xdist_group('processes')


@pytest.fixture
def size(monkeypatch):
    """Two processes, of which only this one is there."""
    monkeypatch.setattr(dist, 'get_world_size', lambda group=None: 2)
    monkeypatch.setattr(dist, 'get_rank', lambda group=None: 1)


@pytest.mark.usefixtures('size')
def test_all_processes_have_what_this_one_has():
    with local_collectives():
        value = torch.tensor([3.0])
        assert dist.all_reduce(value) is None
        assert value.item() == 6
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        assert value.item() == 6
        work = dist.all_reduce(value, async_op=True)
        assert work.wait()
        assert work.is_completed()
        parts = [torch.zeros(2), torch.zeros(2)]
        dist.all_gather(parts, torch.ones(2))
        assert torch.stack(parts).sum() == 4
        whole = torch.zeros(4)
        dist.all_gather_into_tensor(whole, torch.tensor([1.0, 2.0]))
        assert whole.tolist() == [1, 2, 1, 2]
        part = torch.zeros(1)
        dist.reduce_scatter_tensor(part, torch.tensor([5.0, 7.0]))
        assert part.item() == 14
        objects = [None, None]
        dist.all_gather_object(objects, {'a': 1})
        assert objects == [{'a': 1}] * 2
        dist.broadcast(value, src=0)
        dist.barrier()


def test_what_needs_a_particular_process_is_refused():
    with (
        local_collectives(),
        pytest.raises(RuntimeError, match='send needs another process'),
    ):
        dist.send(torch.ones(1), dst=0)


def test_everything_is_put_back():
    before = dist.all_reduce
    with pytest.raises(ZeroDivisionError), local_collectives():
        dist.barrier(1 / 0)
    assert dist.all_reduce is before


def test_the_averages_of_the_hosts_do_not_wait(tmp_path):
    from helpers.toy_ranks import run_on_ranks

    def run():
        rank = dist.get_rank()
        pending = None
        if rank == 1:
            # This one has begun what the other never will.
            pending = dist.all_reduce(torch.ones(1), async_op=True)
        with local_collectives():
            values = [
                reduce_mean(torch.tensor([4.0])).item(),
                mm_dist.all_reduce_dict({'x': torch.ones(1)}, 'mean'),
            ]
        (tmp_path / f'{rank}.json').write_text(json.dumps(values[0]))
        assert pending is None or not pending.is_completed()
        os._exit(0)

    ranks = run_on_ranks(run, 2, tmp_path / 'out')
    assert ranks.wait(30) == [0, 0], ranks.output(0) + ranks.output(1)
    for rank in (0, 1):
        assert json.loads((tmp_path / f'{rank}.json').read_text()) == 4.0
