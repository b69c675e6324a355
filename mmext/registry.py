"""Registry nodes of mmext, children of mmengine's roots.

The parent is mmengine's root and not a host's registry, so that ``mmext.X``
resolves from mmdet configs and from mmseg configs alike. This file imports
mmengine only: mmengine swallows an ImportError raised here.
"""

from mmengine import registry as roots
from mmengine.registry import Registry


def _child(root: Registry, *locations: str) -> Registry:
    """A node that imports modules of mmext when a name is asked for."""
    return Registry(
        root.name, parent=root, scope='mmext', locations=list(locations)
    )


MODELS = _child(
    roots.MODELS,
    *(
        f'mmext.models.{name}'
        for name in (
            'losses',
            'multi_task',
            'co_dino',
            'decode_heads',
            'eva02_vit',
            'hf_backbone',
            'mae',
            'memory_efficient_batch_norm',
            'simple_feature_pyramid',
            'tiled_detector',
        )
    ),
)
MODEL_WRAPPERS = _child(roots.MODEL_WRAPPERS, 'mmext.engine.distributed')
DATASETS = _child(
    roots.DATASETS,
    'mmext.datasets',
    'mmext.datasets.generated',
    'mmext.datasets.lvis',
    'mmext.datasets.nyuv2',
    'mmext.datasets.unlabelled',
    'mmext.datasets.yolo',
)
HOOKS = _child(roots.HOOKS, 'mmext.engine')
LOOPS = _child(roots.LOOPS, 'mmext.engine')
OPTIM_WRAPPERS = _child(roots.OPTIM_WRAPPERS, 'mmext.engine')
OPTIM_WRAPPER_CONSTRUCTORS = _child(
    roots.OPTIM_WRAPPER_CONSTRUCTORS, 'mmext.engine'
)
RUNNERS = _child(roots.RUNNERS, 'mmext.engine')
TRANSFORMS = _child(roots.TRANSFORMS, 'mmext.datasets.transforms')
METRICS = _child(roots.METRICS, 'mmext.evaluation')
EVALUATOR = _child(roots.EVALUATOR, 'mmext.evaluation')
