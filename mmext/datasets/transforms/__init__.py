"""Transforms for pipelines of mmdet, of mmseg, and of several tasks."""

from .label_problem import LabelError, LabelJournal, Tally, tally
from .multi_task import (
    LoadMultiTaskAnnotations,
    MultiTaskRandomFlip,
    MultiTaskRandomScaleCrop,
    MultiTaskResize,
    PackMultiTaskInputs,
)
from .validate_labels import ValidateLabels

__all__ = [
    'LabelError',
    'LabelJournal',
    'LoadMultiTaskAnnotations',
    'MultiTaskRandomFlip',
    'MultiTaskRandomScaleCrop',
    'MultiTaskResize',
    'PackMultiTaskInputs',
    'Tally',
    'ValidateLabels',
    'tally',
]
