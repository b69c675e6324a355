"""Pyramid pooling head of PSPNet."""

from mmseg.models import decode_heads

from ...registry import MODELS
from .resized_loss_mixin import ResizedLossMixin

__all__ = ['PSPHead']


@MODELS.register_module()
class PSPHead(ResizedLossMixin, decode_heads.PSPHead):
    """Pyramid pooling head of PSPNet.

    MMSegmentation's head with losses from low-resolution logits; all
    arguments are those of ``mmseg.PSPHead``.
    """
