"""Registration of everything mmext ships.

mmengine calls :func:`register_all_modules` by this name (``Registry`` with no
locations, ``mmengine.hub``).
"""

import importlib

from mmengine.registry import init_default_scope as set_default_scope


def register_all_modules(init_default_scope: bool = True) -> None:
    """Import every mmext package that registers a component.

    Args:
        init_default_scope: Also make ``mmext`` the current default scope.
            MMEngine's own calls pass False.
    """
    # mmext.datasets alone loads no host, so that it stays light.
    for name in (
        'mmext.models',
        'mmext.datasets.generated_categorical',
        'mmext.datasets.nyuv2',
        'mmext.datasets.shapes_dataset',
        'mmext.datasets.unlabelled',
        'mmext.datasets.yolo',
        'mmext.datasets.transforms',
        'mmext.evaluation',
        'mmext.engine.distributed',
        'mmext.engine',
    ):
        importlib.import_module(name)
    if init_default_scope:
        set_default_scope('mmext')
