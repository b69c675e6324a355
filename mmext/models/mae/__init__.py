"""Masked autoencoders, compatible with mmpretrain's."""

from .convert import (
    LAYOUTS,
    Converted,
    convert_mae_file,
    export_mae_state_dict,
    import_mae_state_dict,
)
from .decoder import MAEDecoder, MAEHead
from .encoder import ARCHITECTURES, MAEViT
from .layers import PatchMask
from .model import MAE, NonFiniteError, first_non_finite

__all__ = [
    'ARCHITECTURES',
    'LAYOUTS',
    'MAE',
    'Converted',
    'MAEDecoder',
    'MAEHead',
    'MAEViT',
    'NonFiniteError',
    'PatchMask',
    'convert_mae_file',
    'export_mae_state_dict',
    'first_non_finite',
    'import_mae_state_dict',
]
