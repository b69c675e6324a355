"""Small backbones of several hosts, and architectures on them."""

import torch
from torch import nn

from mmext.registry import MODELS
from mmext.utils import register_all_modules

TASKS = ('seg', 'depth', 'normal')
SMALL = dict(
    depth=18, base_channels=4, stem_channels=4, out_indices=(3,), init_cfg=None
)


def backbone(kind='mmdet.ResNet', **more):
    """A small backbone; a ResNet-18 of 4 to 32 channels where nothing else."""
    register_all_modules(False)
    torch.manual_seed(0)
    return MODELS.build(dict(SMALL, type=kind, **more))


def architecture(kind, net, tasks=TASKS, **more):
    """An architecture on a backbone, as the model builds it."""
    torch.manual_seed(1)
    return MODELS.build(
        dict(type=f'mmext.{kind}', backbone=net, tasks=tasks, **more)
    )


def backward(module, inputs):
    """Forward and backward through all features and losses.

    Gradients of the features are random, as one that is the same at all
    pixels vanishes in a batch norm.
    """
    result = module(inputs)
    seed = torch.Generator().manual_seed(0)
    total = sum(result.losses.values())
    for features in result.features.values():
        for feature in features:
            random = torch.randn(feature.shape, generator=seed)
            total = total + (feature.float() * random).sum()
    total.backward()
    return result


def without_gradient(*modules):
    """Names of trainable parameters that have no gradient, or not a number."""
    return [
        name
        for module in modules
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
        and (parameter.grad is None or not parameter.grad.isfinite().all())
    ]


class Bottleneck(nn.Module):
    """A bottleneck as in torchvision: ``bn`` for norms, ``expansion`` 2."""

    expansion = 2

    def __init__(self, in_channels, width, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 1)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 2 * width, 1)
        self.downsample = None
        if stride != 1 or in_channels != 2 * width:
            self.downsample = nn.Conv2d(in_channels, 2 * width, 1, stride)

    def forward(self, x):
        out = self.conv3(self.bn2(self.conv2(self.conv1(x))).relu())
        return (out + (self.downsample(x) if self.downsample else x)).relu()


class TorchvisionLike(nn.Module):
    """Three stages in ``layer1`` to ``layer3``; returns the last map only."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 2, 1)
        self.layer1 = nn.Sequential(Bottleneck(8, 4), Bottleneck(8, 4))
        self.layer2 = nn.Sequential(Bottleneck(8, 8, 2), Bottleneck(16, 8))
        self.layer3 = nn.Sequential(Bottleneck(16, 8, 2))

    def forward(self, x):
        return self.layer3(self.layer2(self.layer1(self.conv1(x))))


def small_bottleneck_net():
    """The dilated ResNet of MMSegmentation with two bottlenecks a stage."""
    register_all_modules(False)
    from mmseg.models.backbones import ResNet
    from mmseg.models.backbones.resnet import Bottleneck

    class Small(ResNet):
        arch_settings = {26: (Bottleneck, (2, 2, 2, 2))}

    return Small(
        26,
        base_channels=2,
        stem_channels=2,
        strides=(1, 2, 1, 1),
        dilations=(1, 1, 2, 4),
        contract_dilation=True,
        out_indices=(3,),
    )
