"""Keep parts of a model as they are while the rest is trained."""

from collections.abc import Sequence
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from .distributed import unwrap_model


class FreezeHook(Hook):
    """Keep frozen modules in eval mode: batch norms keep their statistics.

    :class:`~mmext.engine.PortableRunner` adds it for the key ``freeze`` of a
    config. It has no state, and does the same on all processes.

    Args:
        names: Of the modules.
    """

    # Before hooks that look at the model.
    priority = 'VERY_HIGH'

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None
    ) -> None:
        """Undo ``train()``, which the loops call."""
        model = unwrap_model(runner.model)
        for name in self.names:
            module = model.get_submodule(name)
            if any(part.training for part in module.modules()):
                module.eval()
