"""Batches of a config, made up or read from its data."""

__all__ = []
