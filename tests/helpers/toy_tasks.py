"""A small model of three tasks for the toy training, and one step of it.

Only ``ToyTasks`` and its parts are registered; configs name this module in
``custom_imports``.
"""

import torch
from mmengine.registry import MODELS
from torch import nn

from helpers import toy_training as toy
from mmext.models import MultiTaskModel, TaskFeatures

__all__ = ['BALANCERS', 'config', 'model_cfg']

# Each balancer with its arguments; those with epochs take two steps for one.
BALANCERS = {
    'EqualWeights': {},
    'FixedWeights': dict(weights=dict(b=0.5)),
    'UncertaintyWeights': {},
    'DWA': dict(interval=2),
    'FAMO': {},
    'RandomWeights': {},
    'GeometricMean': {},
    'IMTLL': {},
    'STCH': dict(interval=2, warmup=1),
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
        return out + self.noise * torch.randn_like(out)


@MODELS.register_module(force=True)
class ToySharing(nn.Module):
    """The trunk for all; a layer for the first two tasks, one for each."""

    def __init__(self, backbone, tasks, unused=False):
        super().__init__()
        self._backbone = [backbone]
        self.pair = nn.Linear(4, 4)
        self.own = nn.ModuleDict({task: nn.Linear(4, 4) for task in tasks})
        self.unused = nn.Linear(1, 1) if unused else None

    def forward(self, points):
        shared = self._backbone[0](points)
        features = {}
        for index, (task, layer) in enumerate(self.own.items()):
            inputs = self.pair(shared) if index < 2 else shared
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
