"""Record the backbone and the neck of the original CO-DETR with ViT-L.

Runs, of Sense-X/Co-DETR at 26653521: ``ViT`` (mmdet/models/backbones/vit.py)
and ``SFP`` (mmdet/models/necks/sfp.py) at a small width, with two window
blocks and a global one, on two sizes whose maps are no multiple of a window.
mmcv 1.x, fvcore, fairscale and timm are stand-ins; einops must be installed::

    PYTHONPATH=. python tests/oracles/record_eva02_vit.py CHECKOUT OUT.pt
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch
from mmengine.logging import MMLogger
from mmengine.model import BaseModule
from mmengine.registry import Registry
from torch import nn

PUBLIC = Registry('public')
SIZES = ((64, 80), (48, 64))


def stand_in(name: str, **content: object) -> None:
    """A module that is not installed, or was another one."""
    module = sys.modules[name] = ModuleType(name)
    module.__path__ = []
    vars(module).update(content)


def load(checkout: Path, file: str) -> None:
    """Run a file of the checkout as the module that it was."""
    name = f'public.{file.removesuffix(".py").replace("/", ".")}'
    spec = importlib.util.spec_from_file_location(name, checkout / file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def record(model: nn.Module, inputs: list) -> dict:
    """Random weights, outputs for each input, and the gradients of all."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        # Numbers that half the bytes hold.
        nn.init.normal_(parameter, std=0.1)
        parameter.data = parameter.data.bfloat16().float()
    leaves = [x[0] if isinstance(x, list) else x for x in inputs]
    outputs = [model(x) for x in inputs]
    # A plain sum of normed values would be constant.
    loss = sum((t * t.detach().cos()).sum() for out in outputs for t in out)
    loss.backward()
    return {
        'state': {k: v.bfloat16() for k, v in model.state_dict().items()},
        'inputs': [x.detach() for x in leaves],
        'outputs': [[t.detach() for t in out] for out in outputs],
        'gradients': {k: p.grad for k, p in model.named_parameters()},
        'input_gradients': [x.grad for x in leaves],
    }


def main(checkout: Path, out: Path) -> None:
    """Record to a file."""

    def keep(*args: object):
        return lambda function: function

    normal = nn.init.trunc_normal_
    stand_in('fvcore')
    stand_in('fvcore.nn', weight_init=None)
    stand_in('fvcore.nn.weight_init')
    stand_in('scipy', interpolate=None)
    stand_in(
        'mmcv.runner',
        BaseModule=BaseModule,
        ModuleList=nn.ModuleList,
        _load_checkpoint=None,
        auto_fp16=keep,
    )
    stand_in(
        'mmcv.cnn',
        build_norm_layer=None,
        constant_init=None,
        trunc_normal_init=None,
    )
    stand_in('mmcv.cnn.bricks')
    stand_in('mmcv.cnn.bricks.transformer', FFN=None, build_dropout=None)
    stand_in('mmcv.cnn.utils')
    stand_in('mmcv.cnn.utils.weight_init', trunc_normal_=normal)
    stand_in('mmcv.utils', to_2tuple=None)
    stand_in('fairscale')
    stand_in('fairscale.nn')
    stand_in('fairscale.nn.checkpoint', checkpoint_wrapper=None)
    stand_in('timm')
    stand_in('timm.models')
    stand_in(
        'timm.models.layers', DropPath=None, Mlp=None, trunc_normal_=normal
    )
    for name in ('', '.mmdet', '.mmdet.models'):
        stand_in(f'public{name}')
    stand_in('public.mmdet.models.backbones')
    stand_in('public.mmdet.models.necks')
    stand_in('public.mmdet.models.builder', BACKBONES=PUBLIC, NECKS=PUBLIC)
    get = MMLogger.get_current_instance
    stand_in('public.mmdet.utils', get_root_logger=get)
    load(checkout, 'mmdet/models/backbones/vit.py')
    load(checkout, 'mmdet/models/necks/sfp.py')
    torch.manual_seed(0)
    result = {}
    for lsj in (False, True):
        # Half of a head's channels are 32 in the table that is not stored.
        vit = PUBLIC.get('ViT')(
            img_size=64,
            in_chans=1,
            embed_dim=64,
            depth=3,
            num_heads=1,
            window_size=3,
            window_block_indexes=(0, 1),
            pretrain_img_size=64,
            use_lsj=lsj,
        )
        if lsj:
            # The same weights, and a stored table of the whole map.
            weights = {k: v.float() for k, v in result['vit']['state'].items()}
            vit.load_state_dict(weights, strict=False)
            images = torch.randn(1, 1, 64, 64)
            result['lsj'] = {
                'inputs': images,
                'outputs': vit(images)[0].detach(),
                'keys': [k for k in vit.state_dict() if k not in weights],
            }
            continue
        images = [
            torch.randn(1, 1, *size, requires_grad=True) for size in SIZES
        ]
        result['vit'] = record(vit, images)
    neck = PUBLIC.get('SFP')([16], 8, 5, use_p2=True)
    maps = [torch.randn(1, 16, 5, 7, requires_grad=True)]
    result['sfp'] = record(neck, [maps])
    torch.save(result, out)


if __name__ == '__main__':
    main(Path(sys.argv[1]), Path(sys.argv[2]))
