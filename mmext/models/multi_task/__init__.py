"""Multi-task learning: model, architectures, heads, balancers."""

from .architecture import Architecture, HardSharing
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
from .categorical_embedding import CategoricalEmbedding
from .data_preprocessor import MultiTaskDataPreprocessor
from .heads import (
    ClassificationTaskHead,
    DepthTaskHead,
    RegressionTaskHead,
    SegmentationTaskHead,
    SurfaceNormalTaskHead,
    TaskHead,
)
from .mixture import CGC, ConvExpert, MLPExpert, MMoE
from .model import MultiTaskModel, TaskFeatures
from .mtan import MTAN
from .stages import Stage, register_stages

__all__ = [
    'CGC',
    'DWA',
    'FAMO',
    'IMTLL',
    'MTAN',
    'STCH',
    'Architecture',
    'BalancedLosses',
    'CategoricalEmbedding',
    'ClassificationTaskHead',
    'ConvExpert',
    'DepthTaskHead',
    'EqualWeights',
    'FixedWeights',
    'GeometricMean',
    'HardSharing',
    'LossBalancer',
    'MLPExpert',
    'MMoE',
    'MultiTaskDataPreprocessor',
    'MultiTaskModel',
    'RandomWeights',
    'RegressionTaskHead',
    'SegmentationTaskHead',
    'Stage',
    'SurfaceNormalTaskHead',
    'TaskFeatures',
    'TaskHead',
    'UncertaintyWeights',
    'register_stages',
]
