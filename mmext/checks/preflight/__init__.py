"""Check a config and a few steps of its training before it runs on GPUs."""

from .ranks import WorldResult
from .report import PreflightReport
from .run import check_config, check_training

__all__ = [
    'PreflightReport',
    'WorldResult',
    'check_config',
    'check_training',
]
