"""Heads over dense feature maps."""

from .co_atss_head import CoATSSHead
from .co_dino_head import CoDINOHead

__all__ = ['CoATSSHead', 'CoDINOHead']
