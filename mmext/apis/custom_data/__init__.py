"""A config for one's own data: what a folder holds, and a child of a base."""

__all__ = []
