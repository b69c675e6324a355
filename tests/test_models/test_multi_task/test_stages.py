"""Which backbones have stages, and what is said of those that have none."""

import pytest
import torch
from helpers.multi_task_nets import TorchvisionLike, architecture, backbone
from torch import nn

from mmext.models import Stage, register_stages
from mmext.registry import MODELS
from mmext.utils import register_all_modules


def mmdet_backbone(kind, **options):
    """Another backbone of MMDetection."""
    register_all_modules(False)
    return MODELS.build(dict(type=f'mmdet.{kind}', **options))


SWIN = dict(embed_dims=12, depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1))
HRNET = dict(
    stage1=dict(
        num_modules=1,
        num_branches=1,
        block='BOTTLENECK',
        num_blocks=(2,),
        num_channels=(4,),
    ),
    **{
        f'stage{n}': dict(
            num_modules=1,
            num_branches=n,
            block='BASIC',
            num_blocks=(1,) * n,
            num_channels=(4, 8, 16, 32)[:n],
        )
        for n in (2, 3, 4)
    },
)
UNKNOWN = {
    'swin': (
        lambda: mmdet_backbone('SwinTransformer', **SWIN),
        'mmdet.models.backbones.swin.SwinTransformer',
        ['none of these', 'patch_embed (PatchEmbed)', 'stages (ModuleList)'],
    ),
    'hrnet': (
        lambda: mmdet_backbone('HRNet', extra=HRNET),
        'mmdet.models.backbones.hrnet.HRNet',
        ["found ['layer1']", 'stage2 (Sequential)'],
    ),
    'mobilenet': (
        lambda: mmdet_backbone('MobileNetV2'),
        'mmdet.models.backbones.mobilenet_v2.MobileNetV2',
        ['a block of layer1 is a InvertedResidual', '`expansion`'],
    ),
    'empty': (
        nn.Identity,
        'torch.nn.modules.linear.Identity',
        ['Its modules are: none'],
    ),
}


@pytest.mark.parametrize('name', UNKNOWN)
def test_a_backbone_without_known_stages_is_named(name):
    build, kind, result = UNKNOWN[name]
    with pytest.raises(TypeError) as caught:
        architecture('MTAN', build())
    message = str(caught.value)
    assert f'the stages of the backbone {kind} are not known' in message
    for part in (*result, 'register_stages', 'res_layers', 'HardSharing'):
        assert part in message
    assert caught.value.__context__ is None


def test_a_stage_that_is_no_sequence_of_blocks():
    net = TorchvisionLike()
    net.layer2 = nn.Conv2d(8, 16, 1)
    with pytest.raises(TypeError, match='layer2 is a Conv2d and not an nn'):
        architecture('MTAN', net)


class Watched(TorchvisionLike):
    """Its ``forward`` is what a test sets."""

    def __init__(self, run):
        super().__init__()
        self.run = run

    def forward(self, x):
        return self.run(self, x)


def twice(net, x):
    x = net.layer1(net.conv1(x))
    return net.layer3(net.layer2(net.layer1[1](x)))


def without_the_second(net, x):
    return net.layer3(net.layer1(net.conv1(x)).repeat(1, 2, 1, 1))


RUNS = {
    'twice': (twice, RuntimeError, r'Watched\.layer1 ran twice'),
    'not at all': (without_the_second, RuntimeError, 'last block of layer2'),
}


@pytest.mark.parametrize('name', RUNS)
def test_stages_that_do_not_run_once(name):
    run, kind, message = RUNS[name]
    with pytest.raises(kind, match=message):
        architecture('MTAN', Watched(run))(torch.randn(1, 3, 16, 16))


def test_the_error_of_the_backbone_is_the_one_that_is_seen():
    def broken(net, x):
        raise ZeroDivisionError('of the backbone')

    net = Watched(broken)
    with pytest.raises(ZeroDivisionError, match='of the backbone') as caught:
        architecture('MTAN', net)(torch.randn(1, 3, 16, 16))
    assert caught.value.__context__ is None
    hooks = [m._forward_hooks for m in net.modules()]
    assert not any(hooks)


def test_blocks_that_return_several_maps():
    net = backbone('mmdet.TridentResNet', **TRIDENT)
    model = architecture('MTAN', net)
    with pytest.raises(TypeError, match=r'TridentResNet\.layer3.* a list'):
        model(torch.randn(1, 3, 64, 64))


TRIDENT = dict(
    depth=50,
    num_branch=3,
    test_branch_idx=1,
    strides=(1, 2, 2),
    dilations=(1, 1, 1),
    trident_dilations=(1, 2, 3),
    num_stages=3,
    out_indices=(2,),
)


def test_registration_takes_classes_of_modules():
    with pytest.raises(TypeError, match=r'a subclass of nn\.Module, got 3'):
        register_stages(3)


def test_a_registered_class_is_taken_before_what_it_looks_like():
    class Halved(TorchvisionLike):
        pass

    @register_stages(Halved)
    def first_two(net):
        return [
            Stage('layer1', net.layer1, 8),
            Stage('layer2', net.layer2, 16),
        ]

    model = architecture('MTAN', Halved())
    assert model.out_channels == (16,)
    maps = model(torch.randn(2, 3, 32, 32)).features['seg']
    assert [feature.shape for feature in maps] == [(2, 16, 8, 8)]
