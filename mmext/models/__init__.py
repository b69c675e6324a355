"""Registered models."""

from .co_dino import (
    CoATSSHead,
    CoDETR,
    CoDINOClassEmbedHead,
    CoDINOHead,
    CoDINOTransformer,
    CoStandardRoIHead,
)
from .decode_heads import (
    ASPPHead,
    DepthwiseSeparableASPPHead,
    FCNHead,
    PIDHead,
    PSPHead,
    SegformerHead,
    UPerHead,
)
from .losses import (
    CheckedBoundaryLoss,
    CheckedCrossEntropyLoss,
    CheckedOhemCrossEntropy,
)

__all__ = [
    'ASPPHead',
    'CheckedBoundaryLoss',
    'CheckedCrossEntropyLoss',
    'CheckedOhemCrossEntropy',
    'CoATSSHead',
    'CoDETR',
    'CoDINOClassEmbedHead',
    'CoDINOHead',
    'CoDINOTransformer',
    'CoStandardRoIHead',
    'DepthwiseSeparableASPPHead',
    'FCNHead',
    'PIDHead',
    'PSPHead',
    'SegformerHead',
    'UPerHead',
]
