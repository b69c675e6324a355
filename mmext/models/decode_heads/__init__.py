"""Decode heads for semantic segmentation."""

from .heads import (
    ASPPHead,
    DepthwiseSeparableASPPHead,
    FCNHead,
    PIDHead,
    PSPHead,
    ResizedLossMixin,
    SegformerHead,
    UPerHead,
)

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
