"""Registered models, from the packages of this folder."""

from . import co_dino, decode_heads, losses, mae, multi_task
from .co_dino import *  # noqa: F403
from .decode_heads import *  # noqa: F403
from .eva02_vit import EVA02ViT
from .hf_backbone import HFBackbone
from .losses import *  # noqa: F403
from .mae import *  # noqa: F403
from .memory_efficient_batch_norm import MemoryEfficientBatchNorm
from .multi_task import *  # noqa: F403
from .simple_feature_pyramid import SimpleFeaturePyramid
from .tiled_detector import TiledDetector

__all__ = [
    'EVA02ViT',
    'HFBackbone',
    'MemoryEfficientBatchNorm',
    'SimpleFeaturePyramid',
    'TiledDetector',
]
__all__ += co_dino.__all__
__all__ += decode_heads.__all__
__all__ += losses.__all__
__all__ += mae.__all__
__all__ += multi_task.__all__
