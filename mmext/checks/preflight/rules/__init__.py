"""Rules of the preflight, one file a family."""

from . import checkpoints as checkpoints
from . import components as components
from . import data as data
from . import environment as environment
from . import evaluators as evaluators
from . import heads as heads
from . import ignored as ignored
from . import keys as keys
from . import limits as limits
from . import loops as loops
from . import pipelines as pipelines
from . import scales as scales
from . import schedules as schedules

__all__ = []
