"""A masked autoencoder of two layers, and what public ones computed."""

from functools import cache
from pathlib import Path

import torch
from mmengine.registry import MODELS
from torch import nn

from mmext.models import MAE
from mmext.models.mae import PatchMask
from mmext.models.mae.model import make_mask

ORACLE = Path(__file__).parents[1] / 'oracles' / 'mmpretrain_mae.pt'
ARCH = dict(embed_dims=32, num_layers=2, num_heads=2, feedforward_channels=128)
SIZE, PATCH, GRID = 32, 8, (4, 4)


@cache
def record() -> dict:
    """Recorded numbers, see ``tests/reference/mae_oracles.py``."""
    return torch.load(ORACLE, weights_only=True)


def recorded_mask() -> PatchMask:
    """The mask that the recorded noise makes."""
    return make_mask(record()['noise'], GRID)


def mae_config(img_size=SIZE, num_cls_tokens=1, with_cp=False, **more) -> dict:
    """Config of a model of the recorded one's size."""
    both = dict(
        img_size=img_size,
        patch_size=PATCH,
        num_cls_tokens=num_cls_tokens,
        with_cp=with_cp,
    )
    return dict(
        dict(
            type='mmext.MAE',
            backbone=dict(type='mmext.MAEViT', arch=ARCH, **both),
            neck=dict(
                type='mmext.MAEDecoder',
                embed_dim=32,
                decoder_embed_dim=24,
                decoder_depth=2,
                decoder_num_heads=3,
                **both,
            ),
            head=dict(type='mmext.MAEHead', patch_size=PATCH),
        ),
        **more,
    )


def tiny_mae(**kwargs) -> MAE:
    """A model of such a config."""
    config = mae_config(**kwargs)
    del config['type']
    return MAE(**config)


@MODELS.register_module(force=True)
class MAEWithHead(MAE):
    """Has two things, as Lightly's example, that MAE does not run."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.backbone.head = nn.Linear(self.backbone.embed_dims, 10)
        self.backbone.mask_token = nn.Parameter(
            self.backbone.cls_token.detach().clone()
        )


@MODELS.register_module(force=True)
class ToyMAE(MAE):
    """For the points of ``ToyDataset``, which become stripes."""

    def __init__(self):
        config = mae_config()
        del config['type']
        super().__init__(**config)

    def forward(self, inputs, mode='tensor', **_):
        points = torch.stack(list(inputs))[:, :, None, None]
        ramp = torch.arange(float(SIZE))
        images = (points * ramp).sin() + (points * ramp[:, None]).cos()
        if mode == 'loss':
            return super().forward(images, mode='loss')
        return [sample.pred_loss for sample in self.predict(images)]
