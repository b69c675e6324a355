"""A small model of three tasks for the toy training, and one step of it.

Only ``ToyTasks`` and its parts are registered; configs name this module in
``custom_imports``.
"""

from importlib.util import find_spec
from typing import NamedTuple

import torch
from mmengine.model import MMDistributedDataParallel
from mmengine.registry import MODELS, OPTIM_WRAPPERS
from torch import distributed as dist
from torch import nn

from helpers import toy_training as toy
from helpers.toy_ranks import kill_and_resume, run_on_ranks, start_ranks
from mmext.engine.distributed import DistributedDataParallel
from mmext.models import MultiTaskModel, TaskFeatures, multi_task

# Arguments of balancers; those with epochs take two steps for one.
_ARGUMENTS = {
    'FixedWeights': dict(weights=dict(b=0.5)),
    'DWA': dict(interval=2),
    'STCH': dict(interval=2, warmup=1),
}
# Each balancer of the package with its arguments.
BALANCERS = {
    name: _ARGUMENTS.get(name, {})
    for name, kind in vars(multi_task).items()
    if isinstance(kind, type)
    and issubclass(kind, multi_task.LossBalancer)
    and kind is not multi_task.LossBalancer
}

# All of TorchJD, with what they need for three tasks.
AGGREGATORS = {
    'AlignedMTL': {},
    'CAGrad': dict(c=0.5),
    'ConFIG': {},
    'Constant': dict(weights=[0.5, 1.0, 2.0]),
    'CRMOGMWeighting': dict(weighting=dict(type='PCGradWeighting')),
    'DualProj': {},
    'ExcessMTL': {},
    'FairGrad': dict(alpha=1.0),
    'GradDrop': {},
    'GradVac': {},
    'IMTLG': {},
    'Krum': dict(n_byzantine=0),
    'Mean': {},
    'MGDA': {},
    'NashMTL': dict(n_tasks=3),
    'PCD': {},
    'PCGrad': {},
    'Random': {},
    'Sum': {},
    'TrimmedMean': dict(trim_number=1),
    'UPGrad': dict(pref_vector=[1.0, 2.0, 3.0]),
}
# Solvers, which the extra of mmext brings, and not those for tests.
_SOLVERS = {
    'CAGrad': ('cvxpy', 'clarabel'),
    'DualProj': ('quadprog', 'qpsolvers'),
    'FairGrad': ('scipy',),
    'NashMTL': ('cvxpy', 'ecos'),
    'UPGrad': ('quadprog', 'qpsolvers'),
}
for _name, _solvers in _SOLVERS.items():
    if not all(map(find_spec, _solvers)):
        del AGGREGATORS[_name]
# Of each of these there are two kinds; the aggregator was meant above.
AGGREGATORS |= {
    f'{name}Weighting': AGGREGATORS[name]
    for name in AGGREGATORS
    if not name.endswith('Weighting')
    and name not in ('ConFIG', 'GradDrop', 'NashMTL', 'TrimmedMean')
}


@MODELS.register_module(force=True)
class ToyTrunk(nn.Module):
    """What all tasks share, with an optional batch norm."""

    def __init__(self, norm=False, noise=0.0):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()
        self.noise = noise

    def forward(self, points):
        out = self.norm(self.linear(points)).tanh()
        if self.noise:
            out = out + self.noise * torch.randn_like(out)
        return out


@MODELS.register_module(force=True)
class ToySharing(nn.Module):
    """The trunk for all; a layer for the first two tasks, one for each.

    With ``route``, what a task uses depends on the points.
    """

    def __init__(self, backbone, tasks, unused=False, route=False):
        super().__init__()
        self.route = route
        self._backbone = [backbone]
        self.pair = nn.Linear(4, 4)
        self.own = nn.ModuleDict({task: nn.Linear(4, 4) for task in tasks})
        self.unused = nn.Linear(1, 1) if unused else None

    def forward(self, points):
        shared = self._backbone[0](points)
        features = {}
        num = 2
        if self.route:
            num = int(points.sum() > 0) + int(points.sum() > 3)
        for index, (task, layer) in enumerate(self.own.items()):
            inputs = self.pair(shared) if index < num else shared
            features[task] = (layer(inputs).tanh(),)
        return TaskFeatures(features)


@MODELS.register_module(force=True)
class ToyTaskHead(nn.Module):
    """Regression of one linear function of a point."""

    def __init__(self, target, scale=1.0):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer('target', torch.tensor(target))
        self.scale = scale

    def loss(self, features, points):
        target = (points @ self.target.to(points)).unsqueeze(1)
        out = self.linear(features[-1])
        return self.scale * (out.to(target) - target).square().mean()


@MODELS.register_module(force=True)
class ToyTasks(MultiTaskModel):
    """Points are inputs and samples alike."""

    def forward(self, inputs, mode='tensor', **_):
        points = torch.stack(list(inputs))
        if mode != 'loss':
            return [self.backbone(points).mean()]
        return super().forward(points, points, mode)


def model_cfg(balancer='EqualWeights', num_tasks=3, norm=False, **kwargs):
    """Config of the model; tasks ``a``, ``b`` and ``c`` pull it apart."""
    targets = dict(a=[1.0, 1.0, 0.0], b=[-2.0, 1.0, 1.0], c=[0.0, -1.0, 2.0])
    scales = dict(a=1.0, b=3.0, c=0.3)
    return dict(
        type='ToyTasks',
        backbone=dict(
            type='ToyTrunk', norm=norm, noise=kwargs.pop('noise', 0.0)
        ),
        architecture=dict(type='ToySharing', **kwargs),
        heads={
            task: dict(
                type='ToyTaskHead', target=targets[task], scale=scales[task]
            )
            for task in list(targets)[:num_tasks]
        },
        balancer=dict(type=f'mmext.{balancer}', **BALANCERS[balancer]),
    )


def config(balancer='EqualWeights', **changes):
    """Config of the toy training with this model."""
    changes.setdefault('model', model_cfg(balancer, noise=0.1))
    cfg = toy.config(**changes)
    cfg['custom_imports']['imports'].append('helpers.toy_tasks')
    return cfg


class Job(NamedTuple):
    """A training of a few steps without a runner.

    Attributes:
        aggregator: Of :data:`AGGREGATORS`; None for MMEngine's wrapper.
        parts: Batches that one step of the optimizer takes.
        wrapper: Of the model, in two processes: ``'mmext'`` or ``'mm'``.
        model: Changes of the model's config.
        options: Of the wrapper of the optimizer.
        ddp: Of the wrapper of the model.
        fault: Of rank 1 in the second step: ``'drift'``, its weights change,
            or ``'error'``.
    """

    aggregator: str | None = None
    parts: int = 1
    wrapper: str = 'mmext'
    model: dict = {}
    options: dict = {}
    ddp: dict = {}
    fault: str = ''


STEPS, BATCH = 4, 8


def train(job, rank=0, world_size=1):
    """Train on the same points, however divided; the state of the model."""
    torch.manual_seed(0)
    model = MODELS.build(model_cfg(**job.model)).double().train()
    points = torch.randn(STEPS, BATCH, 3).double()
    if world_size > 1:
        kind = dict(
            mmext=DistributedDataParallel, mm=MMDistributedDataParallel
        )
        module, model = model, kind[job.wrapper](module=model, **job.ddp)
    else:
        module = model
    options = dict(accumulative_counts=job.parts, **job.options)
    kind = 'OptimWrapper'
    if job.aggregator is not None:
        kind = 'mmext.GradientSurgeryOptimWrapper'
        options['aggregator'] = dict(
            type=job.aggregator, **AGGREGATORS[job.aggregator]
        )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    wrapper = OPTIM_WRAPPERS.build(
        dict(type=kind, optimizer=optimizer, **options)
    )
    for index, batch in enumerate(points):
        if (index, rank) == (1, 1) and job.fault == 'error':
            module.backbone.forward = None
        elif (index, rank) == (1, 1) and job.fault:
            module.backbone.linear.bias.data += 1
        for part in batch.chunk(job.parts):
            part = part.chunk(world_size)[rank]
            model.train_step(dict(inputs=list(part)), wrapper)
    return module.state_dict()


def train_on_ranks(jobs, folder):
    """:func:`train` each job in two processes; an error is a result."""

    def function():
        rank = dist.get_rank()
        results = []
        for job in jobs:
            try:
                results.append(train(job, rank, 2))
            except (RuntimeError, TypeError, ValueError) as error:
                results.append(f'{type(error).__name__}: {error}')
        torch.save(results, folder / f'{rank}.pth')

    ranks = run_on_ranks(function, 2, folder / 'out')
    assert not any(ranks.wait()), ranks.output()
    return list(zip(*(torch.load(folder / f'{rank}.pth') for rank in (0, 1))))


def kill_on_two_ranks(tmp_path, **changes):
    """One of two processes is killed at a random step; resume, compare."""

    def start(args):
        ranks = start_ranks(args, 2, tmp_path / 'out')
        return next(filter(None, ranks.wait(end_others=True)), 0)

    kill_and_resume(tmp_path, 2, start, 1, config=config, **changes)
