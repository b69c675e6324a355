"""Activation checkpointing that is never reentrant."""

from .modules import (
    CheckpointedModules,
    checkpoint_model,
    find_modules,
    matches_name,
)

__all__ = [
    'CheckpointedModules',
    'checkpoint_model',
    'find_modules',
    'matches_name',
]
