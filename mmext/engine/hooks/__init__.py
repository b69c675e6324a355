"""Hooks: stops, checkpoints, and checks of a training.

Those for configs are named in :mod:`mmext.engine`.
"""

__all__: list[str] = []
