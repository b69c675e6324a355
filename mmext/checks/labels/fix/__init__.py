"""Write a new tree of label files, with the errors repaired that can be."""

__all__ = []
