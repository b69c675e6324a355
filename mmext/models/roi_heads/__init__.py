"""Heads over regions of interest."""

from .co_standard_roi_head import CoStandardRoIHead

__all__ = ['CoStandardRoIHead']
