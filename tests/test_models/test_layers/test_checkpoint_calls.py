"""Classes whose code is known, in the ways in which people write the call."""

import pytest
import torch.utils.checkpoint
import torch.utils.checkpoint as cp
from mmdet.models.backbones.resnet import BasicBlock
from mmdet.models.backbones.resnext import Bottleneck
from mmdet.models.backbones.swin import SwinBlock
from mmdet.models.necks import HRFPN
from mmdet.models.utils.vlfuse_helper import VLFuse
from mmseg.models.backbones.unet import DeconvModule
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from mmext.models.layers.checkpoint_calls import (
    CheckpointCall,
    checkpoint_calls,
)

ckpt = checkpoint
WHOLE = CheckpointCall(False, None, False)


class Loops(nn.Module):
    def forward(self, x):
        for block in self.blocks:
            x = cp.checkpoint(block, x)
        for i, _block in enumerate(self.layers):
            x = torch.utils.checkpoint.checkpoint(self.layers[i], x)
        return x


class Counted(nn.Module):
    def forward(self, x):
        for _, (stage, _name) in enumerate(self.stages):
            x = cp.checkpoint(stage, x)
        return x


class Renamed(nn.Module):
    def forward(self, x):
        return ckpt(function=self.convs, x=x)


class Imports(nn.Module):
    def forward(self, x):
        from torch.utils import checkpoint as module
        from torch.utils.checkpoint import checkpoint as function

        return module.checkpoint(self.a, function(self.b, x))


class Helper(nn.Module):
    def forward(self, x):
        return self._run(x)

    def _run(self, x):
        return checkpoint(self._inner, x)


class Derived(Helper):
    def _run(self, x):
        return super()._run(x) + 1


class Sequence(nn.Module):
    def forward(self, x):
        return checkpoint_sequential(self.blocks, 2, x)


class Careful(nn.Module):
    def forward(self, x):
        return checkpoint(self.convs, x, use_reentrant=False)


class Open(nn.Module):
    def forward(self, x):
        return checkpoint(self.convs, x, use_reentrant=self.reentrant)


class Unrelated(nn.Module):
    checkpoint = None

    def forward(self, x):
        return self.checkpoint(self.convs, x)


@pytest.mark.parametrize(
    ('kind', 'expected'),
    [
        (BasicBlock, [WHOLE]),
        (SwinBlock, [WHOLE]),
        (DeconvModule, [CheckpointCall(False, 'deconv_upsamping', False)]),
        (VLFuse, [CheckpointCall(False, 'b_attn', False)]),
        (
            HRFPN,
            [
                CheckpointCall(False, 'reduction_conv', False),
                CheckpointCall(False, 'fpn_convs', True),
            ],
        ),
        (
            Loops,
            [
                CheckpointCall(False, 'blocks', True),
                CheckpointCall(False, 'layers', True),
            ],
        ),
        (Counted, [CheckpointCall(False, 'stages', True)]),
        (Renamed, [CheckpointCall(False, 'convs', False)]),
        (
            Imports,
            [
                CheckpointCall(False, 'a', False),
                CheckpointCall(False, 'b', False),
            ],
        ),
        (Helper, [CheckpointCall(False, '_inner', False)]),
        (Derived, [CheckpointCall(False, '_inner', False)]),
        (Sequence, [CheckpointCall(False, 'blocks', False)]),
        (Careful, [CheckpointCall(True, 'convs', False)]),
        (Open, [CheckpointCall(False, 'convs', False)]),
        (Unrelated, []),
        (nn.Linear, []),
        (nn.Module, []),
    ],
)
def test_calls_of_a_class(kind: type, expected: list):
    assert sorted(checkpoint_calls(kind)) == sorted(expected)


def test_inherited_calls_are_there_though_not_seen_in_the_subclass():
    """mmdet's ResNeXt block has no forward of its own."""
    assert checkpoint_calls(Bottleneck) == (WHOLE,)


def test_limit_a_class_without_source():
    """Nothing is known but that it calls."""
    scope = {'nn': nn, 'checkpoint': checkpoint}
    exec(
        'class Typed(nn.Module):\n'
        '    def forward(self, x):\n'
        '        return checkpoint(self.convs, x)\n'
        'class Quiet(nn.Module):\n'
        '    def forward(self, x):\n'
        '        return self.convs(x)\n',
        scope,
    )
    assert checkpoint_calls(scope['Typed']) == (WHOLE,)
    assert checkpoint_calls(scope['Quiet']) == ()
