"""Masked autoencoders, compatible with mmpretrain's."""

from .decoder import MAEDecoder
from .encoder import ARCHITECTURES, MAEViT
from .head import MAEHead
from .masking import PatchMask
from .model import MAE, NonFiniteError, first_non_finite

__all__ = [
    'ARCHITECTURES',
    'MAE',
    'MAEDecoder',
    'MAEHead',
    'MAEViT',
    'NonFiniteError',
    'PatchMask',
    'first_non_finite',
]
