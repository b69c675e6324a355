"""Detectors."""

from .co_detr import CoDETR

__all__ = ['CoDETR']
