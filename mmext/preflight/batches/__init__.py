"""Batches of a config, made up or read from its data."""

from .kinds import KINDS, TASKS, check_kinds, kinds_of
from .making import make_batches
from .recipe import Recipe

__all__ = [
    'KINDS',
    'TASKS',
    'Recipe',
    'check_kinds',
    'kinds_of',
    'make_batches',
]
