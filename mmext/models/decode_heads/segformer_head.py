"""Head of SegFormer."""

from mmseg.models import decode_heads

from ...registry import MODELS
from .resized_loss_mixin import ResizedLossMixin

__all__ = ['SegformerHead']


@MODELS.register_module()
class SegformerHead(ResizedLossMixin, decode_heads.SegformerHead):
    """Head of SegFormer.

    MMSegmentation's head with losses from low-resolution logits; all
    arguments are those of ``mmseg.SegformerHead``.
    """
