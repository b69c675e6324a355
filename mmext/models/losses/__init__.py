"""Losses that check their labels."""

from .checked_binary_cross_entropy import (
    CheckedBoundaryLoss,
    checked_binary_cross_entropy,
)
from .checked_cross_entropy import (
    CheckedCrossEntropyLoss,
    checked_cross_entropy,
)
from .checked_ohem_cross_entropy import CheckedOhemCrossEntropy
from .label_range import (
    LabelRangeError,
    LabelRangeMonitor,
    LabelReport,
    find_out_of_range,
    set_current_batch,
)
from .resized_logits import ResizedLogits

__all__ = [
    'CheckedBoundaryLoss',
    'CheckedCrossEntropyLoss',
    'CheckedOhemCrossEntropy',
    'LabelRangeError',
    'LabelRangeMonitor',
    'LabelReport',
    'ResizedLogits',
    'checked_binary_cross_entropy',
    'checked_cross_entropy',
    'find_out_of_range',
    'set_current_batch',
]
