"""Runs of LibMTL 1.1.5, in an environment that has it.

::

    pip install torch==2.13.0 numpy scipy
    pip install --no-deps LibMTL==1.1.5
    python tests/reference/libmtl_runs.py tests/oracles/libmtl_mtan.pt

Writes MTAN's outputs and gradients on narrow ResNets. Needs nothing of mmext,
and no torchvision.
"""

import sys
import types

import numpy as np
import torch
from torch import nn

# LibMTL imports one function of old torchvisions, to download weights.
stub = types.ModuleType('torchvision.models.utils')
stub.load_state_dict_from_url = None
for name in ('torchvision', 'torchvision.models', stub.__name__):
    sys.modules.setdefault(name, stub)

from LibMTL.architecture import MTAN as mtan  # noqa: E402
from LibMTL.model import resnet  # noqa: E402
from LibMTL.model.resnet_dilated import ResnetDilated  # noqa: E402
from LibMTL.weighting import EW  # noqa: E402

TASKS = ['seg', 'depth', 'normal']
CPU = torch.device('cpu')
# Stage widths of LibMTL's MTAN are written into it; we divide them.
DIVISOR = 32


class NarrowNumpy:
    """NumPy for LibMTL's MTAN, in which stages are narrow."""

    @staticmethod
    def array(widths):
        return np.array(widths) // DIVISOR


class NarrowResNet(resnet.ResNet):
    """LibMTL's ResNet with two blocks in each stage, all of them narrow."""

    def __init__(self, block):
        nn.Module.__init__(self)
        self._norm_layer = nn.BatchNorm2d
        self.inplanes = self.base_width = 64
        self.dilation = self.groups = 1
        planes = [64 // DIVISOR * 2**n for n in range(4)]
        self.inplanes = planes[0]
        self.conv1 = nn.Conv2d(3, planes[0], 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(planes[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        for n, width in enumerate(planes):
            layer = self._make_layer(block, width, 2, stride=2 if n else 1)
            setattr(self, f'layer{n + 1}', layer)
        # MTAN takes bottlenecks for 2048, basic blocks for anything else.
        self.feature_dim = 2048 if block.expansion == 4 else 512


def model_of(architecture, encoder, decoders, **kwargs):
    """What LibMTL's trainer builds, for one that is not on cuda:0."""

    class Model(architecture, EW):
        def __init__(self):
            super().__init__(
                list(decoders), encoder, decoders, False, False, **kwargs
            )
            self.init_param()

    return Model()


def identities():
    return nn.ModuleDict({task: nn.Identity() for task in TASKS})


def recorded(encoder, size):
    """Weights, outputs and gradients of one forward in training mode."""
    torch.manual_seed(0)
    model = model_of(mtan, encoder, identities(), device=CPU).double()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.uniform_(0.5, 1.5)
    state = {n: t.clone().float() for n, t in model.state_dict().items()}
    model.load_state_dict(state)
    inputs = torch.randn(2, 3, *size).float()
    outputs = model(inputs.double())
    cotangents = {t: torch.randn(o.shape).float() for t, o in outputs.items()}
    sum((o * cotangents[t]).sum() for t, o in outputs.items()).backward()
    grads = {n: p.grad.float() for n, p in model.named_parameters()}
    with torch.no_grad():
        evaluated = model.eval()(inputs.double())
    return {
        'state': state,
        'inputs': inputs,
        'cotangents': cotangents,
        'outputs': {t: o.detach().float() for t, o in outputs.items()},
        'evaluated': {t: o.float() for t, o in evaluated.items()},
        'grads': grads,
    }


def record():
    sys.modules[mtan.__module__].np = NarrowNumpy
    return {
        'basic': recorded(lambda: NarrowResNet(resnet.BasicBlock), (64, 128)),
        'dilated_bottleneck': recorded(
            lambda: ResnetDilated(NarrowResNet(resnet.Bottleneck)), (32, 64)
        ),
    }


if __name__ == '__main__':
    torch.save(record(), sys.argv[1])
