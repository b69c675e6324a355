"""Bring configs and checkpoints of the public CO-DETR projects along."""

from .codetr_config import translate_codetr_config
from .codetr_files import convert_checkpoint_file, convert_config_file
from .codetr_state_dict import convert_codetr_state_dict

__all__ = [
    'convert_checkpoint_file',
    'convert_codetr_state_dict',
    'convert_config_file',
    'translate_codetr_config',
]
