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
from .mae import MAE, MAEDecoder, MAEHead, MAEViT

__all__ = [
    'MAE',
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
    'MAEDecoder',
    'MAEHead',
    'MAEViT',
    'PIDHead',
    'PSPHead',
    'SegformerHead',
    'UPerHead',
]
