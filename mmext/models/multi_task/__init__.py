"""Multi-task learning: model, architectures, heads, balancers."""

from .architecture import Architecture, HardSharing
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
    'MTAN',
    'Architecture',
    'CategoricalEmbedding',
    'ClassificationTaskHead',
    'ConvExpert',
    'DepthTaskHead',
    'HardSharing',
    'MLPExpert',
    'MMoE',
    'MultiTaskDataPreprocessor',
    'MultiTaskModel',
    'RegressionTaskHead',
    'SegmentationTaskHead',
    'Stage',
    'SurfaceNormalTaskHead',
    'TaskFeatures',
    'TaskHead',
    'register_stages',
]
