"""Optimizer wrappers."""

from .gradient_surgery import (
    AmpGradientSurgeryOptimWrapper,
    GradientSurgeryOptimWrapper,
)

__all__ = [
    'AmpGradientSurgeryOptimWrapper',
    'GradientSurgeryOptimWrapper',
]
