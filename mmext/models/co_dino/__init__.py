"""CO-DINO, compatible with the published CO-DETR weights."""

from .class_embed_head import CoDINOClassEmbedHead
from .co_atss_head import CoATSSHead
from .co_roi_head import CoStandardRoIHead
from .deformable import CoDeformableTransformer, CoDeformDETRHead
from .detector import CoDETR
from .losses import FederatedQualityFocalLoss
from .public_weights import convert_checkpoint_file, convert_codetr_state_dict
from .query_head import CoDINOHead
from .query_mask_head import QueryMaskHead
from .refine_mask_head import CoMaskIoUHead, RefineMaskHead
from .transformer import CoDINOTransformer

__all__ = [
    'CoATSSHead',
    'CoDETR',
    'CoDINOClassEmbedHead',
    'CoDINOHead',
    'CoDINOTransformer',
    'CoDeformDETRHead',
    'CoDeformableTransformer',
    'CoMaskIoUHead',
    'CoStandardRoIHead',
    'FederatedQualityFocalLoss',
    'QueryMaskHead',
    'RefineMaskHead',
    'convert_checkpoint_file',
    'convert_codetr_state_dict',
]
