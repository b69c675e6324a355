"""Heads over dense feature maps."""

from .co_atss_head import CoATSSHead
from .co_dino_class_embed_head import CoDINOClassEmbedHead
from .co_dino_head import CoDINOHead

__all__ = ['CoATSSHead', 'CoDINOClassEmbedHead', 'CoDINOHead']
