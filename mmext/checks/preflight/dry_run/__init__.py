"""Train a model for a few steps, alone, and record what happens."""

__all__ = []
