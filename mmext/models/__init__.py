"""Registered models."""

from .dense_heads import CoATSSHead, CoDINOClassEmbedHead, CoDINOHead
from .detectors import CoDETR
from .layers import CoDINOTransformer
from .roi_heads import CoStandardRoIHead

__all__ = [
    'CoATSSHead',
    'CoDETR',
    'CoDINOClassEmbedHead',
    'CoDINOHead',
    'CoDINOTransformer',
    'CoStandardRoIHead',
]
