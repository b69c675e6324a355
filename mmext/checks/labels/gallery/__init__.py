"""Pictures of what is wrong, for the examples of a report."""

__all__ = []
