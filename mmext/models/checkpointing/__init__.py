"""Activation checkpointing that is never reentrant."""

from .modules import (
    CheckpointedModules,
    checkpoint_model,
    find_modules,
)

__all__ = [
    'CheckpointedModules',
    'checkpoint_model',
    'find_modules',
]
