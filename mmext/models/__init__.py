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
    ClassificationTaskHead,
    DepthTaskHead,
    MultiTaskDataPreprocessor,
    MultiTaskModel,
    RegressionTaskHead,
    SegmentationTaskHead,
    SurfaceNormalTaskHead,
)

__all__ = [
    'ASPPHead',
    'CheckedBoundaryLoss',
    'CheckedCrossEntropyLoss',
    'CheckedOhemCrossEntropy',
    'ClassificationTaskHead',
    'CoATSSHead',
    'CoDETR',
    'CoDINOClassEmbedHead',
    'CoDINOHead',
    'CoDINOTransformer',
    'CoStandardRoIHead',
    'DepthTaskHead',
    'DepthwiseSeparableASPPHead',
    'FCNHead',
    'MultiTaskDataPreprocessor',
    'MultiTaskModel',
    'PIDHead',
    'PSPHead',
    'RegressionTaskHead',
    'SegformerHead',
    'SegmentationTaskHead',
    'SurfaceNormalTaskHead',
    'UPerHead',
]
