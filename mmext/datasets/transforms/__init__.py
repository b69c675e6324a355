"""Transforms for pipelines of mmdet and of mmseg."""

from .label_problem import LabelError, LabelJournal, Tally, tally
from .validate_labels import ValidateLabels

__all__ = [
    'LabelError',
    'LabelJournal',
    'Tally',
    'ValidateLabels',
    'tally',
]
