"""Optimizer wrappers, and how they are built."""

from .gradient_surgery import (
    AmpGradientSurgeryOptimWrapper,
    GradientSurgeryOptimWrapper,
)
from .merged_groups import (
    IMPLEMENTATIONS,
    MergedOptimWrapperConstructor,
)

__all__ = [
    'IMPLEMENTATIONS',
    'AmpGradientSurgeryOptimWrapper',
    'GradientSurgeryOptimWrapper',
    'MergedOptimWrapperConstructor',
]
