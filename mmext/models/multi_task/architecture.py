"""What a multi-task architecture is, and the simplest: share everything."""

from collections.abc import Iterable, Sequence
from typing import Any

from mmengine.model import BaseModule
from torch import Tensor, nn

from ...registry import MODELS
from .model import TaskFeatures
from .stages import backbone_channels, backbone_features


class Architecture(BaseModule):
    """Base class: turns inputs into features for each task.

    A subclass writes :meth:`forward` and ``out_channels``, and
    :meth:`shared_modules` where it has modules that several tasks use.

    Args:
        backbone: The module that all tasks share. It belongs to the model:
            it is used here, and is neither a submodule of the architecture
            nor a part of its state dict.
        tasks: Names of the tasks.
        init_cfg: Initialization, as of any ``BaseModule``.
    """

    out_channels: tuple[int, ...]
    """Channels of the features of a task, shallow first."""

    def __init__(
        self, backbone: nn.Module, tasks: Sequence[str], init_cfg: Any = None
    ) -> None:
        super().__init__(init_cfg)
        self.tasks = tuple(tasks)
        # A module in a tuple is not registered.
        self._backbone = (backbone,)

    @property
    def backbone(self) -> nn.Module:
        """The backbone of the model."""
        return self._backbone[0]

    def forward(self, inputs: Tensor) -> TaskFeatures:
        """Features for each task, and losses of the architecture's own.

        ``inputs``: What the backbone takes, images ``(N, C, H, W)``. Returns
        for each task maps ``(N, C, h, w)`` with the strides of the backbone,
        or vectors ``(N, C)``; the deepest last. They have the dtype of the
        backbone's, or that of the autocast.
        """
        raise NotImplementedError

    def shared_modules(self) -> Iterable[nn.Module]:
        """Modules of the architecture that several tasks use."""
        return ()

    def shared_parameters(self) -> list[nn.Parameter]:
        """Parameters that several tasks train, the backbone's first.

        Frozen ones are left out.
        """
        return [
            parameter
            for module in (self.backbone, *self.shared_modules())
            for parameter in module.parameters()
            if parameter.requires_grad
        ]


@MODELS.register_module()
class HardSharing(Architecture):
    """Hard parameter sharing: each head gets all features of the backbone.

    Works with any backbone that returns a tensor or a tuple of tensors.

    Args:
        backbone: The module that all tasks share.
        tasks: Names of the tasks.
        init_cfg: Initialization, as of any ``BaseModule``.

    Source:
        Caruana, Multitask Learning, Machine Learning 28, 1997. ``HPS`` of
        LibMTL.
    """

    @property
    def out_channels(self) -> tuple[int, ...]:
        """Channels of the features.

        Raises:
            TypeError: If the backbone does not say them; see
                :func:`mmext.models.multi_task.stages.backbone_channels`.
        """
        return backbone_channels(self.backbone)

    def forward(self, inputs: Tensor) -> TaskFeatures:
        """Features of the backbone, the same for each task."""
        features = backbone_features(self.backbone, inputs)
        return TaskFeatures(dict.fromkeys(self.tasks, features))
