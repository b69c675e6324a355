"""Record what the public implementations of MAE compute.

``python tests/reference/mae_oracles.py --vitdet FOLDER --facebook FOLDER``

writes ``tests/oracles/mmpretrain_mae.pt`` in an environment that has
mmpretrain 1.2.0 and timm 1.0.31, which need not be complete: torchvision is
replaced by empty names. ``--vitdet`` is the folder of ``vit.py`` of mmdet's
ViTDet project, ``--facebook`` that of ``models_mae.py``. No code of theirs is
in this file or in the record, only numbers.
"""

import argparse
import importlib
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import torch

OUT = Path(__file__).parents[1] / 'oracles' / 'mmpretrain_mae.pt'
ABSENT = ('huggingface_hub', 'torchvision')
SIZE, PATCH, WIDTH, DEPTH, HEADS = 32, 8, 32, 2, 2
DECODER = dict(
    embed_dim=WIDTH,
    decoder_embed_dim=24,
    decoder_depth=2,
    decoder_num_heads=3,
)


class AnyName(type):
    """Classes whose attributes are names."""

    def __getattr__(cls, name):
        if name.startswith('__'):
            raise AttributeError(name)
        return name


class EmptyModules:
    """Finds the modules that are absent, and makes them empty."""

    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ABSENT:
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__version__ = '0.28.0'

        def attribute(name):
            if name.startswith('__'):
                raise AttributeError(name)
            return AnyName(name, (), {})

        module.__getattr__ = attribute
        return module

    def exec_module(self, module):
        pass


def randomize(model):
    """Weights that leave nothing at zero, from a seed."""
    generator = torch.Generator().manual_seed(3)
    for value in model.state_dict().values():
        value.copy_(torch.randn(value.shape, generator=generator) * 0.2)
    return {k: v.clone() for k, v in model.state_dict().items()}


def gradients(model):
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def record_mmpretrain(images, noise):
    """Latent, prediction, loss and gradients of mmpretrain's MAE."""
    import mmpretrain.models  # noqa: F401
    from mmengine.registry import DefaultScope
    from mmpretrain.models.utils import build_2d_sincos_position_embedding
    from mmpretrain.registry import MODELS

    arch = dict(
        embed_dims=WIDTH,
        num_layers=DEPTH,
        num_heads=HEADS,
        feedforward_channels=4 * WIDTH,
    )
    backbone = dict(arch=arch, img_size=SIZE, patch_size=PATCH)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(
            dict(
                type='MAE',
                backbone=dict(type='MAEViT', mask_ratio=0.75, **backbone),
                neck=dict(
                    type='MAEPretrainDecoder',
                    num_patches=(SIZE // PATCH) ** 2,
                    patch_size=PATCH,
                    **DECODER,
                ),
                head=dict(
                    type='MAEPretrainHead',
                    norm_pix=True,
                    patch_size=PATCH,
                    loss=dict(type='PixelReconstructionLoss', criterion='L2'),
                ),
            )
        )
        vit = MODELS.build(
            dict(
                type='VisionTransformer',
                out_type='featmap',
                out_indices=[0, 1],
                **backbone,
            )
        )
    state = randomize(model)
    model.eval()
    # Only the noise is asked of torch.rand.
    rand, torch.rand = torch.rand, lambda *_, **__: noise
    latent, mask, restore = model.backbone(images)
    torch.rand = rand
    predicted = model.neck(latent, restore)
    loss = model.head.loss(predicted, images, mask)
    model.head.norm_pix = False
    plain = model.head.loss(predicted, images, mask)
    loss.backward()
    vit.load_state_dict({k[9:]: v for k, v in state.items() if 'backb' in k})
    vit.eval()
    tall = images.repeat(1, 1, 2, 1)
    with torch.no_grad():
        return dict(
            state_dict=state,
            latent=latent.detach(),
            mask=mask,
            restore=restore,
            predicted=predicted.detach(),
            loss=loss.detach(),
            loss_without_norm=plain.detach(),
            gradients=gradients(model),
            features=list(vit(images)),
            features_of_tall=list(vit(tall)),
            positions=build_2d_sincos_position_embedding(
                4, WIDTH, cls_token=True
            ),
        )


def record_timm(images):
    """Features of whole pictures by timm's ViT."""
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        img_size=SIZE,
        patch_size=PATCH,
        embed_dim=WIDTH,
        depth=DEPTH,
        num_heads=HEADS,
        num_classes=0,
    )
    state = randomize(model)
    with torch.no_grad():
        features = model.eval().forward_features(images)
    return dict(state_dict=state, features=features)


def record_facebook(folder, images, noise):
    """Loss and gradients of the first implementation."""
    import numpy as np
    from timm.models import vision_transformer

    block = vision_transformer.Block
    vision_transformer.Block = lambda *args, qk_scale, **kwargs: block(
        *args, **kwargs
    )
    np.float = float
    sys.path.insert(0, folder)
    from functools import partial

    models = importlib.import_module('models_mae')
    model = models.MaskedAutoencoderViT(
        img_size=SIZE,
        patch_size=PATCH,
        depth=DEPTH,
        num_heads=HEADS,
        norm_layer=partial(torch.nn.LayerNorm, eps=1e-6),
        norm_pix_loss=True,
        **DECODER,
    )
    state = randomize(model)
    rand, torch.rand = torch.rand, lambda *_, **__: noise
    loss, predicted, _ = model(images, 0.75)
    torch.rand = rand
    loss.backward()
    return dict(
        state_dict=state,
        loss=loss.detach(),
        predicted=predicted.detach(),
        gradients=gradients(model),
    )


def record_vitdet(folder, images):
    """Features of ViTDet's ViT, with windows and without."""
    sys.modules['mmdet'] = types.ModuleType('mmdet')
    sys.modules['mmdet.registry'] = types.SimpleNamespace(
        MODELS=types.SimpleNamespace(register_module=lambda: lambda kind: kind)
    )
    sys.path.insert(0, folder)
    kind = importlib.import_module('vit').ViT
    tall = images.repeat(1, 1, 2, 2)
    records = {}
    for window in (0, 4):
        model = kind(
            img_size=2 * SIZE,
            patch_size=PATCH,
            embed_dim=WIDTH,
            depth=DEPTH,
            num_heads=HEADS,
            use_rel_pos=True,
            window_size=window,
            window_block_indexes=(0,),
            pretrain_img_size=SIZE,
        )
        if window == 0:
            state = randomize(model)
        relative = [key for key in state if 'rel_pos' in key]
        state = {k: v for k, v in state.items() if k not in relative}
        for name, parameter in model.named_parameters():
            if 'rel_pos' in name:
                parameter.data.zero_()
        missing = model.load_state_dict(state, strict=False).missing_keys
        with torch.no_grad():
            features = model.eval()(tall)
        records[window] = dict(missing=sorted(missing), features=features)
    return dict(
        state_dict=state, **{f'window{k}': v for k, v in records.items()}
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--vitdet', required=True)
    parser.add_argument('--facebook', required=True)
    args = parser.parse_args()
    sys.meta_path.insert(0, EmptyModules())
    torch.manual_seed(0)
    images = torch.randn(3, 3, SIZE, SIZE)
    noise = torch.rand(3, (SIZE // PATCH) ** 2)
    record = dict(
        images=images,
        noise=noise,
        mmpretrain=record_mmpretrain(images, noise),
        timm=record_timm(images),
        facebook=record_facebook(args.facebook, images, noise),
        vitdet=record_vitdet(args.vitdet, images),
    )
    torch.save(record, OUT)
    print(f'{OUT}: {OUT.stat().st_size:,} bytes')


if __name__ == '__main__':
    main()
