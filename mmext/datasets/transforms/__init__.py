"""Transforms for pipelines of mmdet and of mmseg."""

from .label_problem import LabelError, LabelProblem
from .validate_labels import ValidateLabels

__all__ = ['LabelError', 'LabelProblem', 'ValidateLabels']
