"""Check the labels of a data set against the config that trains on it.

What checks is loaded when it is asked for: processes that read files only,
of which there may be many, start in half the time without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_HOMES = {'FindingGroup': '.groups', 'check_labels': '.check'}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(_HOMES[name], __name__), name)
