"""Registered models, from the packages of this folder.

Names are imported when they are asked for: the losses and the balancers need
MMEngine, and no other host package.
"""

from typing import TYPE_CHECKING

from ..utils import lazy_names, names_for_type_checkers

if TYPE_CHECKING:
    from .co_dino import *  # noqa: F403
    from .decode_heads import *  # noqa: F403
    from .eva02_vit import EVA02ViT as EVA02ViT
    from .hf_backbone import HFBackbone as HFBackbone
    from .losses import *  # noqa: F403
    from .mae import *  # noqa: F403
    from .memory_efficient_batch_norm import (
        MemoryEfficientBatchNorm as MemoryEfficientBatchNorm,
    )
    from .multi_task import *  # noqa: F403
    from .simple_feature_pyramid import (
        SimpleFeaturePyramid as SimpleFeaturePyramid,
    )
    from .tiled_detector import TiledDetector as TiledDetector

_HOMES = names_for_type_checkers(__file__)
__all__ = [*_HOMES]
__getattr__ = lazy_names(__name__, _HOMES)
