"""Check the labels of a data set against the config that trains on it."""

from .check import check_labels
from .expectations import Expectations, HeadFacts
from .groups import FindingGroup
from .store import FactStore

__all__ = [
    'Expectations',
    'FactStore',
    'FindingGroup',
    'HeadFacts',
    'check_labels',
]
