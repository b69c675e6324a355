"""Atrous spatial pyramid pooling head of DeepLabV3."""

from mmseg.models import decode_heads

from ...registry import MODELS
from .resized_loss_mixin import ResizedLossMixin

__all__ = ['ASPPHead']


@MODELS.register_module()
class ASPPHead(ResizedLossMixin, decode_heads.ASPPHead):
    """Atrous spatial pyramid pooling head of DeepLabV3.

    MMSegmentation's head with losses from low-resolution logits; all
    arguments are those of ``mmseg.ASPPHead``.
    """
