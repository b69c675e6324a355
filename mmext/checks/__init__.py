"""Everything that only looks: at configs, at labels, and at a training step.

Four functions are the door, which the tools go through, too:

- :func:`~mmext.checks.labels.check_labels` reads the labels that a config
  trains on: ``check_labels('config.py')``;
- :func:`~mmext.checks.preflight.check_config` builds a config, trains it for
  a few steps and says what is wrong: ``check_config('config.py')``;
- :func:`~mmext.checks.ddp.explain_step` says what DDP does with a training
  step, and why: ``explain_step(model, batch)``;
- :func:`~mmext.checks.device.rehearse` says what a step would do on a GPU:
  ``rehearse(model, batch)``.

Behind them are :mod:`~mmext.checks.labels`, :mod:`~mmext.checks.preflight`,
:mod:`~mmext.checks.ddp`, :mod:`~mmext.checks.device`,
:mod:`~mmext.checks.config` (read, walk and change configs) and
:mod:`~mmext.checks.findings` (what is found, and reports of it).
They work with any config of MMDetection or MMSegmentation; ``import mmext``
loads none of them.
"""

from typing import TYPE_CHECKING

from ..utils import lazy_names

if TYPE_CHECKING:
    from .ddp import explain_step
    from .device import rehearse
    from .labels import check_labels
    from .preflight import check_config

__all__ = [
    'check_config',
    'check_labels',
    'explain_step',
    'rehearse',
]

__getattr__ = lazy_names(
    __name__,
    {
        'check_config': '.preflight',
        'check_labels': '.labels',
        'explain_step': '.ddp',
        'rehearse': '.device',
    },
)
