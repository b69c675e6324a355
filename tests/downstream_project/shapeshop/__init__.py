"""A project of somebody else that builds on an installed mmext."""

__all__ = []
