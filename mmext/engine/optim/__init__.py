"""Optimizer wrappers."""

__all__ = []
