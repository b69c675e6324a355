"""Decode heads for semantic segmentation."""

from .aspp_head import ASPPHead
from .fcn_head import FCNHead
from .pid_head import PIDHead
from .psp_head import PSPHead
from .resized_loss_mixin import ResizedLossMixin
from .segformer_head import SegformerHead
from .sep_aspp_head import DepthwiseSeparableASPPHead
from .uper_head import UPerHead

__all__ = [
    'ASPPHead',
    'DepthwiseSeparableASPPHead',
    'FCNHead',
    'PIDHead',
    'PSPHead',
    'ResizedLossMixin',
    'SegformerHead',
    'UPerHead',
]
