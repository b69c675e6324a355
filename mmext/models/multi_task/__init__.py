"""Multi-task learning: model, architectures, heads, balancers."""

from .model import MultiTaskModel, TaskFeatures

__all__ = ['MultiTaskModel', 'TaskFeatures']
