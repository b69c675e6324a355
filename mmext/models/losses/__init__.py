"""Losses that check their labels."""

from .checked_binary_cross_entropy import (
    checked_binary_cross_entropy,
    checked_mask_cross_entropy,
)
from .checked_boundary_loss import CheckedBoundaryLoss
from .checked_cross_entropy import (
    checked_cross_entropy,
    nll_map,
    soft_cross_entropy,
)
from .checked_cross_entropy_loss import CheckedCrossEntropyLoss
from .checked_ohem_cross_entropy import CheckedOhemCrossEntropy
from .label_range import (
    LabelRangeError,
    LabelRangeMonitor,
    out_of_range,
    valid_labels,
)
from .resized_logits import ResizedLogits

__all__ = [
    'CheckedBoundaryLoss',
    'CheckedCrossEntropyLoss',
    'CheckedOhemCrossEntropy',
    'LabelRangeError',
    'LabelRangeMonitor',
    'ResizedLogits',
    'checked_binary_cross_entropy',
    'checked_cross_entropy',
    'checked_mask_cross_entropy',
    'nll_map',
    'out_of_range',
    'soft_cross_entropy',
    'valid_labels',
]
