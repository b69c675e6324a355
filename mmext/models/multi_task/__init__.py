"""Multi-task learning: model, architectures, heads, balancers."""

from .balancers import (
    DWA,
    FAMO,
    IMTLL,
    STCH,
    BalancedLosses,
    EqualWeights,
    FixedWeights,
    GeometricMean,
    LossBalancer,
    RandomWeights,
    UncertaintyWeights,
)
from .data_preprocessor import MultiTaskDataPreprocessor
from .heads import (
    ClassificationTaskHead,
    DepthTaskHead,
    RegressionTaskHead,
    SegmentationTaskHead,
    SurfaceNormalTaskHead,
    TaskHead,
)
from .model import MultiTaskModel, TaskFeatures

__all__ = [
    'DWA',
    'FAMO',
    'IMTLL',
    'STCH',
    'BalancedLosses',
    'ClassificationTaskHead',
    'DepthTaskHead',
    'EqualWeights',
    'FixedWeights',
    'GeometricMean',
    'LossBalancer',
    'MultiTaskDataPreprocessor',
    'MultiTaskModel',
    'RandomWeights',
    'RegressionTaskHead',
    'SegmentationTaskHead',
    'SurfaceNormalTaskHead',
    'TaskFeatures',
    'TaskHead',
    'UncertaintyWeights',
]
