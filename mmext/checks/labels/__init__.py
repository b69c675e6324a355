"""Check the labels of a data set against the config that trains on it.

What checks is loaded when it is asked for: processes that read files only,
of which there may be many, start in half the time without it.
"""

from typing import TYPE_CHECKING

from ...utils.lazy_names import lazy_names
from .expectations import Expectations, HeadFacts
from .store import FactStore

if TYPE_CHECKING:
    from .check import check_labels
    from .groups import FindingGroup

__all__ = [
    'Expectations',
    'FactStore',
    'FindingGroup',
    'HeadFacts',
    'check_labels',
]

__getattr__ = lazy_names(
    __name__, {'FindingGroup': '.groups', 'check_labels': '.check'}
)
