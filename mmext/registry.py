"""Registry nodes of mmext, children of mmengine's roots.

The parent is mmengine's root and not a host's registry, so that ``mmext.X``
resolves from mmdet configs and from mmseg configs alike. This file imports
mmengine only: mmengine swallows an ImportError raised here.
"""

from mmengine.registry import DATASETS as MMENGINE_DATASETS
from mmengine.registry import EVALUATOR as MMENGINE_EVALUATOR
from mmengine.registry import HOOKS as MMENGINE_HOOKS
from mmengine.registry import LOOPS as MMENGINE_LOOPS
from mmengine.registry import METRICS as MMENGINE_METRICS
from mmengine.registry import MODEL_WRAPPERS as MMENGINE_MODEL_WRAPPERS
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import (
    OPTIM_WRAPPER_CONSTRUCTORS as MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS,
)
from mmengine.registry import OPTIM_WRAPPERS as MMENGINE_OPTIM_WRAPPERS
from mmengine.registry import RUNNERS as MMENGINE_RUNNERS
from mmengine.registry import TRANSFORMS as MMENGINE_TRANSFORMS
from mmengine.registry import Registry

__all__ = [
    'DATASETS',
    'EVALUATOR',
    'HOOKS',
    'LOOPS',
    'METRICS',
    'MODELS',
    'MODEL_WRAPPERS',
    'OPTIM_WRAPPERS',
    'OPTIM_WRAPPER_CONSTRUCTORS',
    'RUNNERS',
    'TRANSFORMS',
]

MODELS = Registry(
    'model', parent=MMENGINE_MODELS, scope='mmext', locations=['mmext.models']
)
MODEL_WRAPPERS = Registry(
    'model_wrapper',
    parent=MMENGINE_MODEL_WRAPPERS,
    scope='mmext',
    locations=['mmext.engine.distributed'],
)
DATASETS = Registry(
    'dataset',
    parent=MMENGINE_DATASETS,
    scope='mmext',
    locations=[
        'mmext.datasets',
        'mmext.datasets.generated_categorical',
        'mmext.datasets.nyuv2',
        'mmext.datasets.shapes_dataset',
        'mmext.datasets.unlabelled',
        'mmext.datasets.yolo',
    ],
)
HOOKS = Registry(
    'hook', parent=MMENGINE_HOOKS, scope='mmext', locations=['mmext.engine']
)
LOOPS = Registry(
    'loop', parent=MMENGINE_LOOPS, scope='mmext', locations=['mmext.engine']
)
OPTIM_WRAPPERS = Registry(
    'optimizer wrapper',
    parent=MMENGINE_OPTIM_WRAPPERS,
    scope='mmext',
    locations=['mmext.engine'],
)
OPTIM_WRAPPER_CONSTRUCTORS = Registry(
    'optimizer wrapper constructor',
    parent=MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS,
    scope='mmext',
    locations=['mmext.engine'],
)
RUNNERS = Registry(
    'runner',
    parent=MMENGINE_RUNNERS,
    scope='mmext',
    locations=['mmext.engine'],
)
TRANSFORMS = Registry(
    'transform',
    parent=MMENGINE_TRANSFORMS,
    scope='mmext',
    locations=['mmext.datasets.transforms'],
)
METRICS = Registry(
    'metric',
    parent=MMENGINE_METRICS,
    scope='mmext',
    locations=['mmext.evaluation'],
)
EVALUATOR = Registry(
    'evaluator',
    parent=MMENGINE_EVALUATOR,
    scope='mmext',
    locations=['mmext.evaluation'],
)
