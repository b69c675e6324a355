"""Registered models."""

from .decode_heads import (
    ASPPHead,
    DepthwiseSeparableASPPHead,
    FCNHead,
    PIDHead,
    PSPHead,
    SegformerHead,
    UPerHead,
)
from .dense_heads import CoATSSHead, CoDINOClassEmbedHead, CoDINOHead
from .detectors import CoDETR
from .layers import CoDINOTransformer
from .losses import (
    CheckedBoundaryLoss,
    CheckedCrossEntropyLoss,
    CheckedOhemCrossEntropy,
)
from .roi_heads import CoStandardRoIHead

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
