"""What a training step would do on a GPU, seen on a machine without one.

:func:`rehearse` takes a step on a device that Python implements.
"""

from .rehearse import Rehearsal, rehearse
from .tensor import DeviceMixError

__all__ = ['DeviceMixError', 'Rehearsal', 'rehearse']
