"""A query head of the project's own."""

import math

import torch
from torch import nn

from mmext.models import CoDINOHead

from .registry import MODELS

__all__ = ['ExtraLayerHead', 'RareClassHead']


@MODELS.register_module()
class RareClassHead(CoDINOHead):
    """CO-DINO head that starts with a lower chance of every class.

    Args:
        class_prior: Score in (0, 1) that each class has before training.
        **kwargs: As in ``mmext.CoDINOHead``.
    """

    def __init__(self, *, class_prior: float, **kwargs) -> None:
        super().__init__(**kwargs)
        self.class_prior = class_prior

    def init_weights(self) -> None:
        """Initialise as the base class does, then set the class biases."""
        super().init_weights()
        bias = -math.log((1 - self.class_prior) / self.class_prior)
        for branch in self.cls_branches:
            nn.init.constant_(branch.bias, bias)


@MODELS.register_module()
class ExtraLayerHead(RareClassHead):
    """The head with a layer that is not used yet, as one begins to write it.

    Args:
        text_dims: Width of the space that queries shall be taken into.
        **kwargs: As in :class:`RareClassHead`.
    """

    def __init__(self, *, text_dims: int = 512, **kwargs) -> None:
        super().__init__(**kwargs)
        self.class_embed = nn.Parameter(
            torch.empty(self.embed_dims, text_dims)
        )
        nn.init.normal_(self.class_embed)
