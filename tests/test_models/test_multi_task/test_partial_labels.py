"""A task without truth changes nothing for the others.

The oracle of a batch without labels of a task is a model without the task;
that of two processes is one process with both batches.
"""

import copy

import pytest
import torch
from helpers.toy_ranks import run_on_ranks
from helpers.toy_tasks import AGGREGATORS, BALANCERS
from mmengine.registry import MODELS, OPTIM_WRAPPERS
from mmengine.structures import BaseDataElement
from torch import distributed as dist

from mmext.engine.distributed import DistributedDataParallel
from mmext.engine.optim.aggregators import of_tasks
from mmext.models.multi_task.heads import TaskHead

STEPS, BATCH = 4, 8
TASKS = 'abc'
# Of two rows they have nothing to choose from.
NEED_THREE = 'Krum', 'KrumWeighting', 'TrimmedMean'
METHODS = [(name, None) for name in BALANCERS] + [
    ('EqualWeights', name) for name in AGGREGATORS if name not in NEED_THREE
]


def build(tasks, balancer, aggregator):
    """A model of these tasks, with known weights, and its wrapper."""
    options, args = dict(BALANCERS[balancer]), {}
    if 'weights' in options:
        options['weights'] = dict.fromkeys(tasks, 2.0)
    model = MODELS.build(
        dict(
            type='mmext.MultiTaskModel',
            data_preprocessor=dict(type='mmext.MultiTaskDataPreprocessor'),
            backbone=dict(type='ToyTrunk'),
            architecture=dict(type='ToySharing'),
            heads={
                task: dict(
                    type='mmext.RegressionTaskHead',
                    in_channels=4,
                    target=f'gt_{task}',
                    loss='mse',
                )
                for task in tasks
            },
            balancer=dict(type=f'mmext.{balancer}', **options),
        )
    ).train()
    for name, parameter in model.named_parameters():
        if not name.startswith('balancer'):
            generator = torch.Generator().manual_seed(sum(map(ord, name)))
            parameter.data.normal_(generator=generator).mul_(0.5)
    kind = 'OptimWrapper'
    if aggregator is not None:
        kind = 'mmext.GradientSurgeryOptimWrapper'
        locations = [TASKS.index(task) for task in tasks]
        pytest.importorskip('torchjd')
        cfg = dict(type=aggregator, **AGGREGATORS[aggregator])
        args['aggregator'] = of_tasks(cfg, locations, len(TASKS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    wrapper = OPTIM_WRAPPERS.build(
        dict(type=kind, optimizer=optimizer, **args)
    )
    return model, wrapper


def batches(labelled):
    """Batches of samples; ``labelled(task, step, index)`` have a label."""
    generator = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        inputs = torch.randn(BATCH, 3, generator=generator)
        truth = torch.randn(BATCH, 3, generator=generator)
        samples = []
        for index in range(BATCH):
            sample = BaseDataElement()
            for location, task in enumerate(TASKS):
                if labelled(task, step, index):
                    sample.set_field(truth[index, location], f'gt_{task}')
            samples.append(sample)
        yield list(inputs), samples


def train(tasks, method, labelled, rank=0, world_size=1):
    """Weights after some steps, with what the hook does between them."""
    module, wrapper = build(tasks, *method)
    model = module
    if world_size > 1:
        model = DistributedDataParallel(module=module)
    balancer = module.balancer
    balancer.hooked = True
    part = slice(rank, None, world_size)
    for inputs, samples in batches(labelled):
        data = dict(inputs=inputs[part], data_samples=samples[part])
        model.train_step(data, wrapper)
        balancer.after_step()
        if balancer.needs_losses_after_step:
            before = balancer.last_losses
            with torch.no_grad():
                module._run_forward(
                    module.data_preprocessor(data, True), mode='loss'
                )
            after = balancer.last_losses
            if world_size > 1:
                dist.all_reduce(after)
                after /= world_size
            balancer.update(before, after)
        balancer.end_epoch()
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def without_c(task, step, index):
    return task != 'c'


@pytest.mark.parametrize(
    'method', METHODS, ids=[f'{b}-{a}' for b, a in METHODS]
)
def test_as_without_the_task(method):
    if method[0] == 'STCH':
        # Divides by the mean of a warm-up, in which every task has labels.
        def labelled(task, step, index):
            return task != 'c' or step < 1

        run = train(TASKS, method, labelled)
        assert all(value.isfinite().all() for value in run.values())
        return
    run = train(TASKS, method, without_c)
    expected = train('ab', method, without_c)
    for name, value in expected.items():
        mine = run[name]
        if name.startswith('balancer'):
            assert not mine[2].any()
            mine = mine[:2]
        torch.testing.assert_close(mine, value, rtol=1e-4, atol=1e-6)
    # What is of the task alone is trained by nothing.
    start = dict(build(TASKS, *method)[0].named_parameters())
    for name in run.keys() - expected.keys():
        assert torch.equal(run[name], start[name])


def one_rank_only(task, step, index):
    """The labels of ``c`` are on rank 1 of two, and only in some steps."""
    return task != 'c' or (index % 2 == 1 and step != 2)


@pytest.mark.slow
@pytest.mark.xdist_group('processes')
def test_labels_on_one_of_two_ranks(tmp_path):
    methods = [
        method
        for method in METHODS
        # Of all balancers, and of aggregators without state and with some.
        if method[1] in (None, 'PCGrad', 'MGDA', 'CAGrad', 'GradVac')
    ]

    def function():
        rank = dist.get_rank()
        results = [train(TASKS, m, one_rank_only, rank, 2) for m in methods]
        torch.save(results, tmp_path / f'{rank}.pth')

    ranks = run_on_ranks(function, 2, tmp_path / 'out')
    assert not any(ranks.wait()), ranks.output()
    one, other = (torch.load(tmp_path / f'{rank}.pth') for rank in (0, 1))
    for method, first, second in zip(methods, one, other, strict=True):
        expected = train(TASKS, method, one_rank_only)
        for name, value in expected.items():
            assert torch.equal(first[name], second[name]), (method, name)
            torch.testing.assert_close(
                first[name], value, rtol=1e-4, atol=1e-6
            )


def test_too_few_tasks_for_the_aggregator():
    with pytest.raises(ValueError, match='2 of 3 tasks have valid labels'):
        train(TASKS, ('EqualWeights', 'Krum'), without_c)


def test_the_state_of_some_tasks_is_restored():
    """Of an aggregator that remembers; its settings are the config's."""
    model, wrapper = build(TASKS, 'EqualWeights', 'GradVac')
    for inputs, samples in batches(without_c):
        model.train_step(dict(inputs=inputs, data_samples=samples), wrapper)
    state = wrapper.state_dict()
    other = build(TASKS, 'EqualWeights', 'GradVac')[1]
    other.load_state_dict(copy.deepcopy(state))
    restored = other.state_dict()['gradient_surgery']
    assert str(restored) == str(state['gradient_surgery'])
    (modules,) = [item['modules'] for item in restored['partial'].values()]
    changed = {name for values in modules.values() for name in values}
    assert changed
    assert not any('beta' in name or 'eps' in name for name in changed)


def test_a_head_of_somebodys_own_with_the_base_class():
    """It counts all labels, and need not say which are valid."""

    class Own(TaskHead):
        def __init__(self):
            super().__init__('gt_a')
            self.linear = torch.nn.Linear(4, 1)

        def forward(self, features):
            return self.linear(features[-1])

        def loss(self, features, data_samples):
            truth = torch.stack([sample.gt_a for sample in data_samples])
            return (self(features)[:, 0] - truth).abs().mean()

    model, wrapper = build('ab', 'EqualWeights', None)
    model.heads['a'] = Own()
    inputs, samples = next(batches(without_c))
    logs = model.train_step(dict(inputs=inputs, data_samples=samples), wrapper)
    assert logs['a.raw'] > 0
    assert model.heads['a'].count_valid(samples) == BATCH
