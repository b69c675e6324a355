"""Decode heads for semantic segmentation."""

from .heads import (
    ASPPHead,
    DepthwiseSeparableASPPHead,
    FCNHead,
    PSPHead,
    ResizedLossMixin,
    SegformerHead,
    UPerHead,
)
from .pid_head import PIDHead

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
