"""MTAN: an attention network for each task on the stages of one backbone."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...registry import MODELS
from .architecture import Architecture, run_stages, stages_of
from .model import TaskFeatures


@MODELS.register_module()
class MTAN(Architecture):
    """Multi-task attention network on a backbone like ResNet.

    With ``b_i`` and ``t_i``, the maps before and after the last block of
    stage ``i``, the features of task ``k`` are::

        m_0 = A_0k(b_0)                  a_0 = m_0 * t_0
        m_i = A_ik([b_i, B_i-1(a_i-1)])  a_i = m_i * t_i

    The attention ``A_ik`` (1x1 convolution, norm, ReLU, 1x1 convolution,
    norm, sigmoid) belongs to a task; the block ``B_i`` (a residual block of
    the backbone's kind, to the width of the next stage) is shared by all. Its
    output is max-pooled to the size of ``b_i+1`` where that is smaller, so
    that inputs of any size work.

    A task gets ``a_i`` for the stages in ``out_indices`` of the backbone, or
    for the last stage where the backbone has no ``out_indices``. Stages
    deeper than those are not used.

    Args:
        backbone: The module that all tasks share; its stages must be known
            (:func:`mmext.models.register_stages`). Channels are read from it.
        tasks: Names of the tasks.
        task_norm: Whether each task has norms of its own in the shared
            blocks. Otherwise, as published, the batch norms of ``B_i`` see
            the maps of one task after the other, and their running
            statistics mix all tasks.
        norm_cfg: Config of the norms.
        init_cfg: Initialization, as of any ``BaseModule``.

    Raises:
        TypeError: If the stages of the backbone are not known.

    Source:
        End-to-End Multi-Task Learning with Attention, arXiv 1803.10704. The
        network of ``MTAN`` on ``resnet_dilated`` in LibMTL 1.1.5; maps of odd
        size, on which that one fails, are pooled to half their size rounded
        up.
    """

    def __init__(
        self,
        backbone: nn.Module,
        tasks: Sequence[str],
        task_norm: bool = False,
        norm_cfg: Mapping[str, Any] | None = None,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(backbone, tasks, init_cfg)
        self.task_norm = task_norm
        norm_cfg = dict(norm_cfg or {'type': 'BN'})
        stages = stages_of(backbone)
        last = len(stages) - 1
        indices = getattr(backbone, 'out_indices', (last,))
        self.out_indices = tuple(range(last + 1)[index] for index in indices)
        stages = stages[: max(self.out_indices) + 1]
        self.out_channels = tuple(stages[i].channels for i in self.out_indices)
        self.attention = nn.ModuleList(
            nn.ModuleDict(
                {
                    task: _attention(
                        stage.channels * (2 if index else 1),
                        stage.channels // stage.expansion,
                        stage.channels,
                        norm_cfg,
                    )
                    for task in self.tasks
                }
            )
            for index, stage in enumerate(stages)
        )
        self.blocks = nn.ModuleList(
            SharedBlock(
                stage.channels,
                following.channels,
                following.expansion,
                self.tasks if task_norm else (),
                norm_cfg,
            )
            for stage, following in itertools.pairwise(stages)
        )

    def forward(self, inputs: Tensor) -> TaskFeatures:
        """Attended maps of each task; see :class:`Architecture`."""
        _, maps = run_stages(self.backbone, inputs)
        features = {}
        for task in self.tasks:
            attended: list[Tensor] = []
            for index, attention in enumerate(self.attention):
                before, after = maps[index]
                seen = before
                if attended:
                    deeper = self.blocks[index - 1](attended[-1], task)
                    deeper = _pooled(deeper, before.shape[-2:])
                    seen = torch.cat([before, deeper], dim=1)
                attended.append(attention[task](seen) * after)
            features[task] = tuple(attended[i] for i in self.out_indices)
        return TaskFeatures(features)


def _norm(norm_cfg: dict, channels: int) -> nn.Module:
    # The balancers of this package need no MMCV.
    from mmcv.cnn import build_norm_layer

    return build_norm_layer(norm_cfg, channels)[1]


def _attention(
    in_channels: int, width: int, out_channels: int, norm_cfg: dict
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 1),
        _norm(norm_cfg, width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, out_channels, 1),
        _norm(norm_cfg, out_channels),
        nn.Sigmoid(),
    )


def _pooled(x: Tensor, size: torch.Size) -> Tensor:
    """Maps max-pooled to a size ``(h, w)``."""
    if x.shape[-2:] == size:
        return x
    if size == tuple((side + 1) // 2 for side in x.shape[-2:]):
        # Adaptive pooling has no deterministic gradient on a GPU.
        return F.max_pool2d(x, 2, ceil_mode=True)
    return F.adaptive_max_pool2d(x, size)


class SharedBlock(nn.Module):
    """Residual block of stride 1 with, where asked for, norms for each task.

    A basic block where ``expansion`` is 1, else a bottleneck; the shortcut is
    a 1x1 convolution. ``norm_tasks``: Tasks that have norms of their own;
    where empty all share them.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        expansion: int,
        norm_tasks: Sequence[str],
        norm_cfg: dict,
    ) -> None:
        super().__init__()
        width = out_channels // expansion
        kernels = (3, 3) if expansion == 1 else (1, 3, 1)
        widths = [in_channels, *[width] * (len(kernels) - 1), out_channels]
        shapes = list(zip(widths[:-1], widths[1:], kernels))
        shapes.append((in_channels, out_channels, 1))
        self.convs = nn.ModuleList(
            nn.Conv2d(start, end, size, padding=size // 2, bias=False)
            for start, end, size in shapes
        )
        self.norms = nn.ModuleList(
            nn.ModuleDict(
                {task: _norm(norm_cfg, end) for task in norm_tasks or ('all',)}
            )
            for _, end, _ in shapes
        )

    def forward(self, x: Tensor, task: str) -> Tensor:
        """``x``: ``(N, in_channels, h, w)``. Returns the same size."""
        *layers, shortcut = [
            (conv, norm[task if task in norm else 'all'])
            for conv, norm in zip(self.convs, self.norms)
        ]
        out = x
        for index, (conv, norm) in enumerate(layers):
            out = norm(conv(F.relu(out) if index else out))
        conv, norm = shortcut
        return F.relu(out + norm(conv(x)))
