"""Fully convolutional head, of FCN and as auxiliary head."""

from mmseg.models import decode_heads

from ...registry import MODELS
from .resized_loss_mixin import ResizedLossMixin

__all__ = ['FCNHead']


@MODELS.register_module()
class FCNHead(ResizedLossMixin, decode_heads.FCNHead):
    """Fully convolutional head, of FCN and as auxiliary head.

    MMSegmentation's head with losses from low-resolution logits; all
    arguments are those of ``mmseg.FCNHead``.
    """
