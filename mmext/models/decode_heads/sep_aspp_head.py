"""Head of DeepLabV3+."""

from mmseg.models import decode_heads

from ...registry import MODELS
from .resized_loss_mixin import ResizedLossMixin

__all__ = ['DepthwiseSeparableASPPHead']


@MODELS.register_module()
class DepthwiseSeparableASPPHead(
    ResizedLossMixin, decode_heads.DepthwiseSeparableASPPHead
):
    """Head of DeepLabV3+.

    MMSegmentation's head with losses from low-resolution logits; all
    arguments are those of ``mmseg.DepthwiseSeparableASPPHead``.
    """
