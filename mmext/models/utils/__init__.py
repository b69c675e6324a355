"""Pure functions that the models share."""

from .co_positives import CoPositives
from .mask_policy import MASK_POLICIES

__all__ = ['MASK_POLICIES', 'CoPositives']
