"""Pure functions that the models share."""

from .class_embeddings import (
    ClassEmbeddings,
    check_class_embeddings,
    read_class_embeddings,
)
from .co_positives import CoPositives
from .mask_policy import MASK_POLICIES

__all__ = [
    'MASK_POLICIES',
    'ClassEmbeddings',
    'CoPositives',
    'check_class_embeddings',
    'read_class_embeddings',
]
