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
from .multi_task import (
    CGC,
    MTAN,
    Architecture,
    CategoricalEmbedding,
    ConvExpert,
    HardSharing,
    MLPExpert,
    MMoE,
    Stage,
    TaskFeatures,
    register_stages,
)

__all__ = [
    'CGC',
    'MTAN',
    'ASPPHead',
    'Architecture',
    'CategoricalEmbedding',
    'CheckedBoundaryLoss',
    'CheckedCrossEntropyLoss',
    'CheckedOhemCrossEntropy',
    'CoATSSHead',
    'CoDETR',
    'CoDINOClassEmbedHead',
    'CoDINOHead',
    'CoDINOTransformer',
    'CoStandardRoIHead',
    'ConvExpert',
    'DepthwiseSeparableASPPHead',
    'FCNHead',
    'HardSharing',
    'MLPExpert',
    'MMoE',
    'PIDHead',
    'PSPHead',
    'SegformerHead',
    'Stage',
    'TaskFeatures',
    'UPerHead',
    'register_stages',
]
