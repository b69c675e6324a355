"""Multi-task learning: model, architectures, heads, balancers."""

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
    'ClassificationTaskHead',
    'DepthTaskHead',
    'MultiTaskDataPreprocessor',
    'MultiTaskModel',
    'RegressionTaskHead',
    'SegmentationTaskHead',
    'SurfaceNormalTaskHead',
    'TaskFeatures',
    'TaskHead',
]
