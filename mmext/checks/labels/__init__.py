"""Check the labels of a data set against the config that trains on it.

What checks is loaded when it is asked for: processes that read files only,
of which there may be many, start in half the time without it.
"""

from typing import TYPE_CHECKING

from ...utils import lazy_names
from .expectations import Expectations
from .store import FactStore

if TYPE_CHECKING:
    from .check import check_sources
    from .report import FindingGroup
    from .run import LabelCheck, check_labels

__all__ = [
    'Expectations',
    'FactStore',
    'FindingGroup',
    'LabelCheck',
    'check_labels',
    'check_sources',
]

__getattr__ = lazy_names(
    __name__,
    {
        'FindingGroup': '.report',
        'LabelCheck': '.run',
        'check_labels': '.run',
        'check_sources': '.check',
    },
)
