"""Small instances of everything in the hosts that has a ``with_cp``.

Each is a function of ``with_cp``; ``FEEDS`` makes the inputs of those that
take something else than images.
"""

from functools import partial

import torch
from mmcv.cnn import ResNet as MmcvResNet
from mmdet.models.backbones import (
    DetectoRS_ResNet,
    EfficientNet,
    HRNet,
    MobileNetV2,
    RegNet,
    Res2Net,
    ResNeSt,
    ResNet,
    ResNetV1d,
    ResNeXt,
    SwinTransformer,
    TridentResNet,
)
from mmdet.models.backbones.trident_resnet import TridentConv
from mmdet.models.necks import HRFPN
from mmdet.models.utils.vlfuse_helper import VLFuse
from mmengine.registry import DefaultScope
from mmseg.models import backbones as mmseg
from torch import Tensor, nn

_HR = {
    'stage1': {
        'num_modules': 1,
        'num_branches': 1,
        'block': 'BOTTLENECK',
        'num_blocks': (1,),
        'num_channels': (4,),
    }
} | {
    f'stage{i}': {
        'num_modules': 1,
        'num_branches': i,
        'block': 'BASIC',
        'num_blocks': (1,) * i,
        'num_channels': (4, 8, 8, 8)[:i],
    }
    for i in (2, 3, 4)
}
_SWIN = {'embed_dims': 4, 'depths': (1, 2, 1, 1), 'num_heads': (1, 1, 2, 4)}
_CARDS = {'groups': 2, 'base_width': 2}
_SPLIT = {'depth': 50, 'base_channels': 4, 'stem_channels': 4}
_UNET = {
    'base_channels': 4,
    'num_stages': 3,
    'strides': (1, 1, 1),
    'enc_num_convs': (1, 1, 1),
    'dec_num_convs': (1, 1),
    'downsamples': (True, True),
    'enc_dilations': (1, 1, 1),
    'dec_dilations': (1, 1),
}


def _trident(with_cp: bool) -> nn.Module:
    module = TridentResNet(
        depth=50,
        base_channels=2,
        num_stages=3,
        strides=(1, 2, 2),
        dilations=(1, 1, 1),
        trident_dilations=(1, 2, 3),
        num_branch=3,
        test_branch_idx=1,
        out_indices=(2,),
        with_cp=with_cp,
    )
    for layer in module.modules():
        if isinstance(layer, TridentConv):
            nn.init.kaiming_normal_(layer.weight)  # which nobody else does
    return module


def _unet(upsample: str, with_cp: bool) -> nn.Module:
    with DefaultScope.overwrite_default_scope('mmseg'):
        return mmseg.UNet(
            upsample_cfg={'type': upsample}, with_cp=with_cp, **_UNET
        )


CHECKPOINTED = {
    'ResNet-18': partial(ResNet, 18, base_channels=4, stem_channels=4),
    'ResNet-50': partial(
        ResNet, 50, base_channels=2, stem_channels=4, frozen_stages=1
    ),
    'ResNetV1d': partial(
        ResNetV1d, depth=50, base_channels=2, stem_channels=4
    ),
    'ResNeXt': partial(ResNeXt, depth=50, base_channels=8, **_CARDS),
    'Res2Net': partial(
        Res2Net, depth=50, scales=4, base_width=4, base_channels=8
    ),
    'ResNeSt': partial(ResNeSt, **_SPLIT),
    'RegNet': partial(
        RegNet,
        arch={
            'w0': 8,
            'wa': 8.0,
            'wm': 2.0,
            'group_w': 4,
            'depth': 6,
            'bot_mul': 1.0,
        },
    ),
    'HRNet': partial(HRNet, extra=_HR),
    'TridentResNet': _trident,
    'Swin': partial(SwinTransformer, **_SWIN),
    'MobileNetV2': partial(MobileNetV2, widen_factor=0.1),
    'EfficientNet': partial(
        EfficientNet, arch='b0', drop_path_rate=0.2, out_indices=(2, 3, 4)
    ),
    'EfficientNet-e': partial(
        EfficientNet, arch='es', drop_path_rate=0.2, out_indices=(2, 3, 4)
    ),
    'DetectoRS': partial(DetectoRS_ResNet, depth=50, base_channels=2),
    'HRFPN': partial(HRFPN, in_channels=[4, 8], out_channels=6, num_outs=3),
    'VLFuse': lambda with_cp: VLFuse(
        v_dim=4, l_dim=6, embed_dim=8, num_heads=2, use_checkpoint=with_cp
    ),
    'mmcv ResNet': partial(MmcvResNet, 50),
    'mmseg ResNet-18': partial(
        mmseg.ResNet, depth=18, base_channels=4, stem_channels=4
    ),
    'mmseg ResNetV1c': partial(
        mmseg.ResNetV1c, depth=50, base_channels=2, stem_channels=4
    ),
    'mmseg ResNeXt': partial(
        mmseg.ResNeXt, depth=50, base_channels=8, **_CARDS
    ),
    'mmseg ResNeSt': partial(mmseg.ResNeSt, **_SPLIT),
    'mmseg HRNet': partial(mmseg.HRNet, extra=_HR),
    'mmseg Swin': partial(mmseg.SwinTransformer, **_SWIN),
    'mmseg MiT': partial(
        mmseg.MixVisionTransformer,
        embed_dims=4,
        num_layers=(1, 1, 1, 1),
        num_heads=(1, 1, 1, 1),
        drop_path_rate=0.2,
    ),
    'mmseg ViT': partial(
        mmseg.VisionTransformer,
        img_size=(64, 64),
        embed_dims=8,
        num_layers=2,
        num_heads=2,
        drop_rate=0.2,
    ),
    'mmseg UNet': partial(_unet, 'InterpConv'),
    'mmseg UNet-deconv': partial(_unet, 'DeconvModule'),
    'mmseg CGNet': partial(
        mmseg.CGNet, num_channels=(8, 16, 32), num_blocks=(1, 1)
    ),
    'mmseg MobileNetV2': partial(mmseg.MobileNetV2, widen_factor=0.1),
    'mmseg MobileNetV3': partial(mmseg.MobileNetV3, arch='small'),
}


def feed(name: str) -> tuple:
    """Arguments for one of them, from the global random numbers."""
    if name == 'HRFPN':
        sizes = ((2, 4, 32, 32), (2, 8, 16, 16))
        return ([torch.randn(size, requires_grad=True) for size in sizes],)
    if name == 'VLFuse':
        visual = [
            torch.randn(2, 4, s, s, requires_grad=True) for s in range(1, 6)
        ]
        hidden = torch.randn(2, 3, 6, requires_grad=True)
        masks = torch.ones(2, 3, dtype=torch.long)
        return (
            {'visual': visual, 'lang': {'hidden': hidden, 'masks': masks}},
        )
    return (torch.randn(2, 3, 64, 64),)


def _tensors(output: object) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    items = output.values() if isinstance(output, dict) else output
    return [tensor for item in items for tensor in _tensors(item)]


def loss_of(module: nn.Module, name: str) -> Tensor:
    """A scalar into which all outputs enter, with seeded inputs."""
    torch.manual_seed(11)
    return sum(x.square().mean() for x in _tensors(module(*feed(name))))


def reentrant_nodes(output: Tensor) -> int:
    """Number of reentrant checkpoints in the graph."""
    seen, todo, count = set(), [output.grad_fn], 0
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        count += node.name() == 'CheckpointFunctionBackward'
        todo += [parent for parent, _ in node.next_functions]
    return count
