"""Transforms for pipelines of mmdet and of mmseg, and without labels."""

from .label_problem import LabelError, LabelJournal, Tally, tally
from .pictures import PackImages, RandomResizedCrop
from .validate_labels import ValidateLabels

__all__ = [
    'LabelError',
    'LabelJournal',
    'PackImages',
    'RandomResizedCrop',
    'Tally',
    'ValidateLabels',
    'tally',
]
