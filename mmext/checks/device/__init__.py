"""What a training step would do on a GPU, seen on a machine without one.

:func:`rehearse` takes a step on a device that Python implements.
"""

from .rehearse import MemoryForecast, Rehearsal, rehearse
from .tensor import DeviceMixError, is_available

__all__ = [
    'DeviceMixError',
    'MemoryForecast',
    'Rehearsal',
    'is_available',
    'rehearse',
]
