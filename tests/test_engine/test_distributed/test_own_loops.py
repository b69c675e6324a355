"""Loops of a user's own: join, copies of the wrapper, sparse embeddings."""

import copy
import pickle
import subprocess
import sys
import time

import pytest
import torch
from helpers.toy_ranks import process_environ, results_of_ranks
from mmengine.model import (
    BaseModel,
    ExponentialMovingAverage,
    MMDistributedDataParallel,
)
from mmengine.optim import OptimWrapper
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from mmext.engine.distributed import (
    DistributedDataParallel,
    GradientSyncError,
)

pytestmark = pytest.mark.xdist_group('processes')


class Net(BaseModel):
    """Two layers, of which a batch may leave one out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, inputs, stem=True, mode='loss'):
        x = self.stem(inputs) if stem else inputs
        return {'loss': self.head(x).square().mean()}


def batches(rank, count, **last):
    """Batches of a rank; ``last`` are arguments of the last one."""
    generator = torch.Generator().manual_seed(rank)
    result = [
        {'inputs': torch.randn(4, 2, generator=generator)}
        for _ in range(count)
    ]
    result[-1] |= last
    return result


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loop(model, data, optimizer):
    """An epoch without an OptimWrapper."""
    for batch in data:
        optimizer.zero_grad()
        model(**batch)['loss'].backward()
        optimizer.step()


def mmengine_loop(model, data, optimizer):
    """An epoch as MMEngine's loops run it."""
    for batch in data:
        model.train_step(batch, OptimWrapper(optimizer))


@pytest.mark.parametrize('run_loop', [loop, mmengine_loop])
@pytest.mark.parametrize('divide', [True, False])
def test_join_gives_the_weights_of_pytorchs_wrapper(
    tmp_path, run_loop, divide
):
    def run(rank):
        results = []
        for kind in (MMDistributedDataParallel, DistributedDataParallel):
            model = kind(Net())
            optimizer = optimizer_of(model)
            for counts in ((2, 5), (4, 1), (0, 3)):
                # A rank has fewer batches, or none at all.
                data = batches(rank, 9)[: counts[rank]]
                with model.join(divide_by_initial_world_size=divide):
                    run_loop(model, data, optimizer)
            results.append(weights(model))
        assert torch.equal(*results)
        return results[0].tolist()

    first, second = results_of_ranks(run, tmp_path)
    assert 'value' in first, first
    assert first == second


@pytest.mark.parametrize('run_loop', [loop, mmengine_loop])
def test_a_rank_without_batches_learns_of_a_missing_gradient(
    tmp_path, run_loop
):
    def run(rank):
        model = DistributedDataParallel(Net())
        data = batches(rank, 1 if rank == 0 else 4, stem=rank == 0)
        with model.join():
            run_loop(model, data, optimizer_of(model))

    first, second = results_of_ranks(run, tmp_path)
    assert first == second
    assert first['error'] == 'GradientSyncError'
    assert '2 parameters on rank 1 got no gradient' in first['text']
    assert 'stem.weight' in first['text']


def test_a_rank_without_batches_learns_of_an_error(tmp_path):
    def run(rank):
        model = DistributedDataParallel(Net())
        data = batches(rank, 1 if rank == 0 else 3)
        if rank == 1:
            data[-1]['inputs'] = data[-1]['inputs'][:, :1]
        with model.join():
            mmengine_loop(model, data, optimizer_of(model))

    first, second = results_of_ranks(run, tmp_path)
    assert first['error'] == 'PeerError'
    assert 'rank 1: RuntimeError: mat1 and mat2 shapes' in first['text']
    assert second['error'] == 'RuntimeError'


@pytest.mark.parametrize('run_loop', [loop, mmengine_loop])
def test_join_that_ends_with_the_first_rank(tmp_path, run_loop):
    def run(rank):
        model = DistributedDataParallel(Net())
        optimizer = optimizer_of(model)
        begin = time.monotonic()
        with (
            pytest.raises(RuntimeError, match='exhausted') as caught,
            model.join(throw_on_early_termination=True),
        ):
            run_loop(model, batches(rank, 2 + rank), optimizer)
        assert time.monotonic() - begin < 8  # nobody waits for the other
        # No batch was left to one rank alone, and the training may go on.
        with model.join(enable=False):
            run_loop(model, batches(rank, 3), optimizer)
        return str(caught.value), weights(model).tolist()

    first, second = results_of_ranks(run, tmp_path)
    assert 'error' not in first | second, (first, second)
    assert first['value'][0] == 'Rank 0 exhausted all inputs.'
    assert second['value'][0].startswith('Detected at least one rank')
    assert first['value'][1] == second['value'][1]


def averaged_by_torch(model):
    copied = AveragedModel(model)
    copied.update_parameters(model)
    return copied.module


def averaged_by_mmengine(model):
    copied = ExponentialMovingAverage(model)
    copied.update_parameters(model)
    return copied.module


def saved(model, folder):
    torch.save(model, folder / 'model.pth')
    return torch.load(folder / 'model.pth', weights_only=False)


@pytest.mark.parametrize('static', [False, True])
def test_copies_of_a_wrapper(tmp_path, static):
    def run(rank):
        model = DistributedDataParallel(Net(), static_graph=static)
        loop(model, batches(rank, 3), optimizer_of(model))
        if rank == 0:  # a copy waits for nobody
            for copied in (
                averaged_by_torch(model),
                averaged_by_mmengine(model),
                saved(model, tmp_path),
                pickle.loads(pickle.dumps(model)),
                copy.deepcopy(model),
                saved(model.module, tmp_path),
            ):
                assert torch.equal(weights(copied), weights(model))
                assert type(copied) is type(model) or copied.stem
                copied.eval()
                with torch.no_grad():
                    copied(**batches(rank, 1)[0])
        copied = copy.deepcopy(model)
        start = weights(model)
        loop(copied, batches(rank, 6), optimizer_of(copied))
        assert torch.equal(weights(model), start)
        with pytest.raises(GradientSyncError, match=r'stem\.weight'):
            loop(copied, batches(rank, 2, stem=False), optimizer_of(copied))
        # It is the copy that has failed.
        loop(model, batches(rank, 2), optimizer_of(model))
        return weights(copied).tolist(), weights(model).tolist()

    first, second = results_of_ranks(run, tmp_path)
    assert 'value' in first, first
    assert first == second


ELSEWHERE = """
import pickle, sys, torch
from torch import distributed as dist
from mmext.engine.distributed import GradientSyncError
path, given = sys.argv[1:]
dist.init_process_group('gloo', f'file://{path}', rank=0, world_size=1)
model = pickle.load(open(given, 'rb'))
try:
    model(torch.ones(1, 2)).sum().backward()
except GradientSyncError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_wrapper_goes_to_another_process_after_a_failed_step(tmp_path):
    def run(rank):
        # Classes that the other process can import.
        net = nn.Sequential(nn.Linear(2, 1))
        net.register_parameter('extra', nn.Parameter(torch.zeros(3)))
        model = DistributedDataParallel(net)
        with pytest.raises(GradientSyncError) as caught:
            model(torch.ones(1, 2)).sum().backward()
        again = pickle.loads(pickle.dumps(caught.value))
        assert str(again) == str(caught.value)
        (tmp_path / f'{rank}.pickle').write_bytes(pickle.dumps(model))

    results = results_of_ranks(run, tmp_path)
    assert results == [{'value': None}] * 2
    done = subprocess.run(
        [
            *(sys.executable, '-c', ELSEWHERE),
            *(tmp_path / 'store', tmp_path / '1.pickle'),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=process_environ(),
    )
    assert 'got no gradient: never used in forward' in done.stdout, done
    assert '\n    extra\n' in done.stdout


class SparseNet(BaseModel):
    """A sparse embedding that is used in the given way."""

    def __init__(self, use):
        super().__init__()
        torch.manual_seed(0)
        self.use = use
        self.table = nn.Embedding(4, 3, sparse=True)
        self.plain = nn.Parameter(torch.ones(4, 3))
        self.head = nn.Linear(3, 1)

    def forward(self, inputs, mode='loss'):
        if self.use == 'dense':
            x = self.plain[inputs] + self.table.weight[inputs]
        elif self.use == 'sparse elsewhere':
            x = F.embedding(inputs, self.plain, sparse=True)
            x = x + self.table(inputs)
        else:
            x = self.plain[inputs] + 0
            if self.use == 'looked up':
                x = x + self.table(inputs)
        return {'loss': self.head(x).mean()}


INPUTS = [{'inputs': torch.tensor([0, 1])}] * 2
LAYOUT_ADVICE = (
    'Advice 1. In the model, for {}: set sparse=False in the embedding; else '
    'use it in every step, as an embedding only, and no sparse gradients '
    'elsewhere.'
)


def plain_sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize('run_loop', [loop, mmengine_loop])
@pytest.mark.parametrize('setting', ['find_unused_parameters', 'static_graph'])
def test_a_sparse_embedding_that_a_step_skips(tmp_path, run_loop, setting):
    def run(rank):
        model = DistributedDataParallel(
            SparseNet('looked up'), **{setting: True}
        )
        optimizer = plain_sgd(model)
        if setting == 'static_graph':
            model.module.use = 'skipped'
        else:
            run_loop(model, INPUTS, optimizer)
            # On one rank only, and all have to know.
            model.module.use = 'skipped' if rank == 1 else 'looked up'
        run_loop(model, INPUTS, optimizer)

    first, second = results_of_ranks(run, tmp_path)
    assert first == second
    assert first['error'] == 'GradientSyncError'
    text = ' '.join(first['text'].split())
    assert ' got no gradient: ' in text
    assert 'DDP needs a gradient of an embedding with sparse=True' in text
    assert text.endswith(LAYOUT_ADVICE.format('table.weight'))


def test_a_sparse_embedding_needs_no_lookup_with_a_gradient(tmp_path):
    """PyTorch's reducer takes the gradient that is there."""

    def run(rank):
        results = []
        for kind in (MMDistributedDataParallel, DistributedDataParallel):
            model = kind(SparseNet('looked up'), find_unused_parameters=True)
            with model.no_sync():
                model(**INPUTS[0])['loss'].backward()
            model.module.use = 'skipped'
            model(**INPUTS[0])['loss'].backward()
            plain_sgd(model).step()
            results.append(weights(model))
        assert torch.equal(*results)

    assert results_of_ranks(run, tmp_path) == [{'value': None}] * 2


@pytest.mark.parametrize(
    ('use', 'name', 'text'),
    [
        ('dense', 'table.weight', 'got a dense gradient, and DDP expects a'),
        ('sparse elsewhere', 'plain', 'got a sparse gradient, which DDP'),
    ],
)
def test_a_gradient_of_another_layout(tmp_path, use, name, text):
    def run(rank):
        model = DistributedDataParallel(SparseNet(use))
        mmengine_loop(model, INPUTS, plain_sgd(model))

    first, second = results_of_ranks(run, tmp_path)
    assert first == second
    assert first['error'] == 'GradientSyncError'
    assert text in first['text']
    assert f'\n    {name}\n' in first['text']
    assert LAYOUT_ADVICE.format(name) in ' '.join(first['text'].split())
