"""Readers of files: bytes in, facts out, nothing raised for bad bytes."""

__all__ = []
