"""Optimizer wrappers, and how they are built."""

from .gradient_surgery import (
    AmpGradientSurgeryOptimWrapper,
    GradientSurgeryOptimWrapper,
)
from .merged_groups import (
    IMPLEMENTATIONS,
    MULTIPLIERS,
    MergedOptimWrapperConstructor,
    merge_groups,
)

__all__ = [
    'IMPLEMENTATIONS',
    'MULTIPLIERS',
    'AmpGradientSurgeryOptimWrapper',
    'GradientSurgeryOptimWrapper',
    'MergedOptimWrapperConstructor',
    'merge_groups',
]
