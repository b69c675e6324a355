"""Transforms for pipelines of mmdet, of mmseg, and of ours."""

from .label_problem import LabelError, LabelJournal, Tally, tally
from .multi_task import (
    LoadMultiTaskAnnotations,
    MultiTaskRandomFlip,
    MultiTaskRandomScaleCrop,
    MultiTaskResize,
    PackMultiTaskInputs,
)
from .pictures import PackImages, RandomResizedCrop, TileViews
from .validate_labels import ValidateLabels

__all__ = [
    'LabelError',
    'LabelJournal',
    'LoadMultiTaskAnnotations',
    'MultiTaskRandomFlip',
    'MultiTaskRandomScaleCrop',
    'MultiTaskResize',
    'PackImages',
    'PackMultiTaskInputs',
    'RandomResizedCrop',
    'Tally',
    'TileViews',
    'ValidateLabels',
    'tally',
]
