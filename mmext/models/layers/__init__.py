"""Layers and transformers."""

from .activation_checkpoint import checkpoint_modules, is_checkpointed
from .co_dino_transformer import CoDINOTransformer

__all__ = ['CoDINOTransformer', 'checkpoint_modules', 'is_checkpointed']
