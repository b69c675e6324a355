"""Models as files that run without this package, and how to run one.

Nothing is imported here, as running a file needs NumPy only.
"""

__all__ = []
