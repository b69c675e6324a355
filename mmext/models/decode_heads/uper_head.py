"""Head of UPerNet."""

from mmseg.models import decode_heads

from ...registry import MODELS
from .resized_loss_mixin import ResizedLossMixin

__all__ = ['UPerHead']


@MODELS.register_module()
class UPerHead(ResizedLossMixin, decode_heads.UPerHead):
    """Head of UPerNet.

    MMSegmentation's head with losses from low-resolution logits; all
    arguments are those of ``mmseg.UPerHead``.
    """
