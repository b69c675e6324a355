"""CO-DINO, compatible with the published CO-DETR weights."""

from .class_embed_head import CoDINOClassEmbedHead
from .co_atss_head import CoATSSHead
from .co_roi_head import CoStandardRoIHead
from .deformable import CoDeformableTransformer, CoDeformDETRHead
from .detector import CoDETR
from .public_weights import convert_checkpoint_file, convert_codetr_state_dict
from .query_head import CoDINOHead
from .transformer import CoDINOTransformer

__all__ = [
    'CoATSSHead',
    'CoDETR',
    'CoDINOClassEmbedHead',
    'CoDINOHead',
    'CoDINOTransformer',
    'CoDeformDETRHead',
    'CoDeformableTransformer',
    'CoStandardRoIHead',
    'convert_checkpoint_file',
    'convert_codetr_state_dict',
]
