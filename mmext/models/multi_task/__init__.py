"""Multi-task learning: model, architectures, heads, balancers."""

from .architecture import Architecture, HardSharing, Stage, register_stages
from .balancers import (
    IMTLL,
    BalancedLosses,
    EqualWeights,
    FixedWeights,
    GeometricMean,
    LossBalancer,
    RandomWeights,
    UncertaintyWeights,
)
from .categorical_embedding import CategoricalEmbedding
from .heads import (
    ClassificationTaskHead,
    DepthTaskHead,
    RegressionTaskHead,
    SegmentationTaskHead,
    SurfaceNormalTaskHead,
    TaskHead,
)
from .learning_balancers import DWA, FAMO, STCH
from .mixture import CGC, ConvExpert, MLPExpert, MMoE
from .model import MultiTaskDataPreprocessor, MultiTaskModel, TaskFeatures
from .mtan import MTAN

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
