"""The wrapper on two processes; its cases are in ``test_ddp_matrix``."""

import copy
import os

import pytest
import torch
from helpers import odd_modules
from helpers.odd_modules import ODD, REFUSED, OddNet
from helpers.toy_ranks import results_of_ranks
from mmdet.utils import reduce_mean
from mmengine.model import BaseModel, MMFullyShardedDataParallel
from mmengine.optim import OptimWrapper
from torch import distributed as dist
from torch import nn

from mmext.engine.distributed import (
    DistributedDataParallel,
    GradientSyncError,
    model_wrapper_config,
)

pytestmark = pytest.mark.xdist_group('processes')


class Net(BaseModel):
    """A stem, a branch, a head, and a parameter that nothing uses."""

    def __init__(self, extra=False):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(2, 2)
        self.branch = nn.Linear(2, 2)
        self.head = nn.Linear(2, 1)
        self.norm = nn.BatchNorm1d(2)
        if extra:
            self.class_embed = nn.Parameter(torch.zeros(3))

    def forward(self, inputs, branch=True, mode='loss'):
        x = self.norm(self.stem(inputs))
        if branch:
            x = self.branch(x)
        return {'loss': self.head(x).mean()}


def batch(rank, step, **kwargs):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return {'inputs': torch.randn(4, 2, generator=generator), **kwargs}


def train(model, batches, accumulate=1, lr=0.1):
    """One step per batch; returns the wrapper."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    optim = OptimWrapper(optimizer, accumulative_counts=accumulate)
    optim.initialize_count_status(model, 0, len(batches))
    for data in batches:
        model.train_step(data, optim)
    return model


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_an_unused_parameter_stops_all_before_the_optimizer(tmp_path):
    def run(rank):
        model = DistributedDataParallel(Net(extra=True))
        start = weights(model)
        with pytest.raises(GradientSyncError, match=r'class_embed') as caught:
            train(model, [batch(rank, 0)])
        assert torch.equal(weights(model), start)
        assert [r.missing for r in caught.value.reports] == [
            ('class_embed',)
        ] * 2
        # It stays broken: its hooks are gone.
        with pytest.raises(GradientSyncError):
            model(**batch(rank, 1))
        raise caught.value

    first, second = results_of_ranks(run, tmp_path)
    assert first == second
    assert 'never used in forward' in first['text']
    assert '\nfind_unused_parameters = True' in first['text']


def test_a_forward_that_averages_over_ranks_does_not_hang(tmp_path):
    class Averaging(Net):
        def forward(self, inputs, **kwargs):
            losses = super().forward(inputs, **kwargs)
            return {'loss': losses['loss'] * reduce_mean(torch.ones(1))}

    def run(rank):
        # Rank 0 has begun reductions in which rank 1 will not take part.
        model = DistributedDataParallel(Averaging(), bucket_cap_mb=1e-5)
        train(model, [batch(rank, 0), batch(rank, 1, branch=rank == 0)])

    for result in results_of_ranks(run, tmp_path):
        assert result['error'] == 'GradientSyncError'
        assert (
            '2 parameters on rank 1 got no gradient: in a branch that was '
            'not taken for this batch\n    branch.weight' in result['text']
        )


def test_freezing_and_unfreezing_after_wrapping(tmp_path):
    def run(rank):
        net = Net()
        net.branch.requires_grad_(False)
        model = DistributedDataParallel(net)
        train(model, [batch(rank, 0)])
        net.branch.requires_grad_(True)
        net.head.requires_grad_(False)
        train(model, [batch(rank, 1)])

    for result in results_of_ranks(run, tmp_path):
        assert 'would never be averaged\n    branch.weight' in result['text']
        assert (
            'frozen (requires_grad=False) after the model was wrapped\n'
            '    head.weight' in result['text']
        )


def test_an_error_of_one_rank_reaches_the_other(tmp_path):
    def run(rank):
        model = DistributedDataParallel(Net())
        train(model, [batch(rank, 0)])
        data = batch(rank, 1)
        if rank == 1:
            data['inputs'] = data['inputs'][:, :1]
        train(model, [data])

    first, second = results_of_ranks(run, tmp_path)
    assert first['error'] == 'PeerError'
    assert 'rank 1: RuntimeError: mat1 and mat2 shapes' in first['text']
    assert second['error'] == 'RuntimeError'
    assert 'mat1 and mat2' in second['text']


def test_accumulated_steps_count_when_they_are_averaged(tmp_path):
    def run(rank):
        model = DistributedDataParallel(Net())
        batches = [
            batch(rank, 0, branch=False),  # not averaged, so of no concern
            batch(rank, 1),
            batch(rank, 2, branch=False),
            batch(rank, 3),
        ]
        return weights(train(model, batches, accumulate=2)).tolist()

    first, second = results_of_ranks(run, tmp_path)
    assert first['value'] == second['value']


def test_a_static_graph_cannot_begin_with_an_accumulated_step(tmp_path):
    def run(rank):
        model = DistributedDataParallel(Net(), static_graph=True)
        train(model, [batch(rank, 0), batch(rank, 1)], accumulate=2)

    for result in results_of_ranks(run, tmp_path):
        assert 'accumulative_counts' in result['text']
        assert 'static_graph' in result['text']


def test_without_checks_errors_are_those_of_pytorch(tmp_path):
    def run(rank):
        model = DistributedDataParallel(Net(extra=True), check_gradients=False)
        train(model, [batch(rank, 0), batch(rank, 1)])

    for result in results_of_ranks(run, tmp_path):
        assert result['error'] == 'RuntimeError'
        assert 'Expected to have finished reduction' in result['text']


def test_buffers_are_equal_at_the_start_and_then_of_each_rank(tmp_path):
    def run(rank):
        net = Net()
        net.norm.running_mean.fill_(rank)
        model = DistributedDataParallel(net)
        start = net.norm.running_mean.tolist()
        train(model, [batch(rank, 0)], lr=0.0)
        return [start, net.norm.running_mean.tolist()]

    first, second = [r['value'] for r in results_of_ranks(run, tmp_path)]
    assert first[0] == second[0] == [0.0, 0.0]
    assert first[1] != second[1]


def test_one_process_needs_no_vote(tmp_path):
    os.environ.pop('LOCAL_RANK', None)
    dist.init_process_group(
        'gloo', f'file://{tmp_path}/store', rank=0, world_size=1
    )
    try:
        train(DistributedDataParallel(Net()), [batch(0, 0)])
        with pytest.raises(GradientSyncError, match='class_embed'):
            train(DistributedDataParallel(Net(extra=True)), [batch(0, 0)])
    finally:
        dist.destroy_process_group()


CPU, GPU = torch.device('cpu'), torch.device('cuda', 1)
DDP = dict(type='mmext.DistributedDataParallel')
OFF = dict(**DDP, broadcast_buffers=False, find_unused_parameters=False)
SHARDED = dict(type=MMFullyShardedDataParallel, use_orig_params=True)


@pytest.mark.parametrize(
    ('cfg', 'device', 'find_unused', 'expected'),
    [
        (None, CPU, None, OFF),
        (
            None,
            GPU,
            True,
            {**OFF, 'find_unused_parameters': True, 'device_ids': [1]},
        ),
        (
            dict(static_graph=True, broadcast_buffers=True),
            CPU,
            True,
            dict(
                **DDP,
                static_graph=True,
                broadcast_buffers=True,
                find_unused_parameters=True,
            ),
        ),
        (dict(device_ids=[0], output_device=0), CPU, None, OFF),
        (dict(device_ids=[0]), GPU, None, {**OFF, 'device_ids': [0]}),
        (SHARDED, GPU, True, SHARDED),
    ],
)
def test_config(cfg, device, find_unused, expected):
    before = copy.deepcopy(cfg)
    assert model_wrapper_config(cfg, device, find_unused) == expected
    assert cfg == before


@pytest.mark.parametrize(
    ('cfg', 'error', 'message'),
    [
        (
            dict(find_unused_parameters=False),
            ValueError,
            'got True at the top level and Fals',
        ),
        (dict(type='NoSuchWrapper'), KeyError, "got 'NoSuchWrapper'"),
    ],
)
def test_rejects_config(cfg, error, message):
    with pytest.raises(error, match=message):
        model_wrapper_config(cfg, CPU, True)


def test_two_backwards_of_a_forward_are_refused(tmp_path):
    class Twice(OptimWrapper):
        def backward(self, loss, **kwargs):
            loss.backward(retain_graph=True)
            super().backward(loss, **kwargs)

    def run(rank):
        model = DistributedDataParallel(Net())
        start = weights(model)
        optim = Twice(torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(GradientSyncError) as caught:
            model.train_step(batch(rank, 0), optim)
        assert torch.equal(weights(model), start)
        raise caught.value

    first, second = results_of_ranks(run, tmp_path)
    assert first == second
    assert 'more than one backward for a forward' in ' '.join(
        first['text'].split()
    )
    assert 'stem.weight' in first['text']


def late_backward(model, data, times):
    """A step of a loop of one's own."""
    loss = model(**data)['loss']
    for index in range(times):
        loss.backward(retain_graph=index < times - 1)


def test_a_second_backward_of_one_rank_in_a_later_step(tmp_path):
    """The other rank, which sees no reason, is told at its next backward."""

    def run(rank):
        model = DistributedDataParallel(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(8):
            twice = rank == 1 and step == 6
            late_backward(model, batch(rank, step), 1 + twice)
            optimizer.step()
            optimizer.zero_grad()

    for result in results_of_ranks(run, tmp_path):
        assert result['error'] == 'GradientSyncError'
        assert 'the processes are out of step' in result['text']


def test_gradients_that_are_averaged_by_hand_are_fine(tmp_path):
    def run(rank):
        model = DistributedDataParallel(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            loss = model(**batch(rank, step))['loss']
            parameters = list(model.parameters())
            grads = torch.autograd.grad(loss, parameters)
            for parameter, grad in zip(parameters, grads):
                dist.all_reduce(grad)
                parameter.grad = grad / 2
            optimizer.step()
        return weights(model).tolist()

    first, second = results_of_ranks(run, tmp_path)
    assert first['value'] == second['value']


def test_a_step_of_what_was_never_averaged_is_refused(tmp_path):
    """Gradients from a forward around the wrapper, or under no_sync."""

    def run(rank):
        model = DistributedDataParallel(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, [batch(rank, i) for i in range(5)])
        optimizer.zero_grad()
        with model.no_sync():
            model(**batch(rank, 5))['loss'].backward()
        optimizer.step()

    for result in results_of_ranks(run, tmp_path):
        assert result['error'] == 'GradientSyncError'
        assert 'drift apart' in result['text']


def test_lazy_parameters_are_refused(tmp_path):
    def run(rank):
        net = Net()
        net.late = nn.LazyLinear(2)
        with pytest.raises(ValueError, match=r'lazy ones: late.weight'):
            DistributedDataParallel(net)

    assert results_of_ranks(run, tmp_path) == [{'value': None}] * 2


def test_odd_modules_are_trained(tmp_path):
    def run(rank):
        values = {}
        for name in REFUSED:
            with pytest.raises(
                ValueError, match=r'processes: part\.mix; make'
            ):
                DistributedDataParallel(OddNet(name))
        for name in ODD:
            model = DistributedDataParallel(OddNet(name))
            train(model, [odd_modules.batch_of(i, rank) for i in range(3)])
            values[name] = weights(model).tolist()
        return values

    first, second = results_of_ranks(run, tmp_path)
    assert first == second
    assert set(first['value']) == set(ODD)


class Listed(Net):
    """A layer of a list is not the model's."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(2, 2)]

    def forward(self, inputs, mode='loss'):
        return super().forward(self.layers[0](inputs))


def listed_optim(model):
    parameters = [*model.parameters(), *model.module.layers[0].parameters()]
    return OptimWrapper(torch.optim.SGD(parameters, lr=0.1))


def test_parameters_of_the_optimizer_alone_are_refused(tmp_path):
    def run(rank):
        model = DistributedDataParallel(Listed())
        optim = listed_optim(model)
        start = model.module.layers[0].weight.tolist()
        with pytest.raises(GradientSyncError) as caught:
            model.train_step(batch(rank, 0), optim)
        assert model.module.layers[0].weight.tolist() == start
        raise caught.value

    first, second = results_of_ranks(run, tmp_path)
    assert first == second
    for part in ('layers[0].weight', 'layers[0].bias', 'nn.ModuleList'):
        assert part in first['text']
    assert 'stem' not in first['text']


@pytest.mark.parametrize('how', ['averaged', 'frozen'])
def test_parameters_of_the_optimizer_alone_that_do_not_drift(
    tmp_path, monkeypatch, how
):
    said = []
    monkeypatch.setattr(
        'mmext.engine.distributed.wrapper.print_log',
        lambda text, *_, **__: said.append(text),
    )

    def run(rank):
        model = DistributedDataParallel(Listed())
        for parameter in model.module.layers[0].parameters():
            if how == 'frozen':
                parameter.requires_grad_(False)
            else:
                parameter.register_hook(reduce_mean)
        optim = listed_optim(model)
        for step in range(6):
            model.train_step(batch(rank, step), optim)
        values = [p.tolist() for p in optim.param_groups[0]['params']]
        return [values, said]

    first, second = results_of_ranks(run, tmp_path)
    assert first['value'][0] == second['value'][0]
    # Once, by rank 0.
    (text,) = first['value'][1]
    assert 'layers[0].weight' in text
    assert second['value'][1] == []
