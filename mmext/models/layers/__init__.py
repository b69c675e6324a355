"""Layers and transformers."""

from .activation_checkpoint import (
    checkpoint_module,
    checkpoint_modules,
    is_checkpointed,
)
from .co_dino_transformer import CoDINOTransformer
from .model_checkpoints import checkpoint_model, find_modules
from .reentrant_checkpoints import (
    replace_reentrant_checkpoints,
    unreplaced_checkpoints,
)

__all__ = [
    'CoDINOTransformer',
    'checkpoint_model',
    'checkpoint_module',
    'checkpoint_modules',
    'find_modules',
    'is_checkpointed',
    'replace_reentrant_checkpoints',
    'unreplaced_checkpoints',
]
