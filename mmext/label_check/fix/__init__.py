"""Write a new tree of label files, with the errors repaired that can be."""

from .fix_labels import fix_labels
from .summary import FixSummary

__all__ = ['FixSummary', 'fix_labels']
