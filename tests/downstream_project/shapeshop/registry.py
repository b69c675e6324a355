"""The project's own scope: ``type='shapeshop.X'`` needs no custom_imports."""

from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import Registry

__all__ = ['MODELS']

MODELS = Registry(
    'model',
    parent=MMENGINE_MODELS,
    scope='shapeshop',
    locations=['shapeshop.heads'],
)
