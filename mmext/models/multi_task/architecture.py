"""What a multi-task architecture is, and what it reads of a backbone.

MTAN reads each stage before and after its last block. The backbone runs its
own ``forward``, and hooks record the maps, so that frozen stages,
``norm_eval``, checkpointing and stems work as in the host.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...registry import MODELS
from .model import TaskFeatures


class Architecture(BaseModule):
    """Base class: turns inputs into features for each task.

    A subclass writes :meth:`forward` and ``out_channels``.

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
                :func:`backbone_channels`.
        """
        return backbone_channels(self.backbone)

    def forward(self, inputs: Tensor) -> TaskFeatures:
        """Features of the backbone, the same for each task."""
        features = backbone_features(self.backbone, inputs)
        return TaskFeatures(dict.fromkeys(self.tasks, features))


class Stage(NamedTuple):
    """A part of a backbone that works at one resolution.

    Attributes:
        name: Name of the stage in the backbone, such as ``'layer1'``.
        blocks: Its blocks, in the order in which they run; each takes and
            returns maps ``(N, C, h, w)``.
        channels: Channels of the maps that the last block returns; with
            several blocks also of the maps that it takes.
        expansion: ``channels`` divided by the width inside of a block: 1 for
            a basic block, 4 for a bottleneck of ResNet.
    """

    name: str
    blocks: Sequence[nn.Module]
    channels: int
    expansion: int = 1


class StageMaps(NamedTuple):
    """What a stage has computed.

    Attributes:
        before: Input of the last block, ``(N, C, h, w)``; its output where
            the stage has one block only.
        after: Output of the last block, ``(N, C, h, w)``.
    """

    before: Tensor
    after: Tensor


Adapter = Callable[[Any], Sequence[Stage]]
_ADAPTERS: dict[type, Adapter] = {}


def register_stages(kind: type) -> Callable[[Adapter], Adapter]:
    """Register the stages of a backbone that is not built like ResNet.

    ``kind``: Class of the backbone; its subclasses are included. The
    decorated function takes the backbone and returns its stages, shallow
    first. A later registration replaces an earlier one. ::

        @register_stages(MyBackbone)
        def stages_of_mine(backbone):
            return [
                Stage(f'stages.{n}', stage, stage[-1].out_channels)
                for n, stage in enumerate(backbone.stages)
            ]

    Raises:
        TypeError: If ``kind`` is not a class of modules.
    """
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise TypeError(
            f'register_stages takes a subclass of nn.Module, got {kind!r}'
        )

    def register(adapter: Adapter) -> Adapter:
        _ADAPTERS[kind] = adapter
        return adapter

    return register


def stages_of(backbone: nn.Module) -> tuple[Stage, ...]:
    """Stages of a backbone, shallow first.

    Known are the classes given to :func:`register_stages`, and whatever is
    built like ResNet: stages named in ``res_layers`` (the ResNets, ResNeXt,
    Res2Net, ResNeSt, RegNet of MMDetection, MMSegmentation and
    MMPretrain), or ``layer1``, ``layer2`` and so on (torchvision, LibMTL),
    each an ``nn.Sequential`` of blocks with ``expansion`` and ``conv2`` or
    ``conv3``.

    Raises:
        TypeError: If no stages are known; the message names the class, what
            was looked for, and the modules of the backbone.
    """
    for kind in type(backbone).__mro__:
        if kind in _ADAPTERS:
            return tuple(_ADAPTERS[kind](backbone))
    names = getattr(backbone, 'res_layers', None)
    if names is None:
        names = []
        while hasattr(backbone, f'layer{len(names) + 1}'):
            names.append(f'layer{len(names) + 1}')
    if len(names) < 2:
        raise TypeError(
            _unknown(backbone, f'found {names or "none of these"}')
        )
    return tuple(_stage_like_resnet(backbone, name) for name in names)


def _stage_like_resnet(backbone: nn.Module, name: str) -> Stage:
    blocks = getattr(backbone, name)
    if not isinstance(blocks, nn.Sequential) or not len(blocks):
        raise TypeError(
            _unknown(
                backbone,
                f'{name} is a {type(blocks).__name__} and not an '
                'nn.Sequential of blocks',
            )
        )
    block = blocks[-1]
    convs = [getattr(block, f'conv{n}', None) for n in (3, 2)]
    channels = [c.out_channels for c in convs if hasattr(c, 'out_channels')]
    if not channels or not hasattr(block, 'expansion'):
        raise TypeError(
            _unknown(
                backbone,
                f'a block of {name} is a {type(block).__name__}, which lacks '
                '`expansion`, or `conv3` and `conv2` with `out_channels`',
            )
        )
    return Stage(name, blocks, channels[0], block.expansion)


def _unknown(backbone: nn.Module, reason: str) -> str:
    kind = type(backbone)
    children = [
        f'{name} ({type(child).__name__})'
        for name, child in backbone.named_children()
    ]
    return (
        f'the stages of the backbone {kind.__module__}.{kind.__qualname__} '
        'are not known: looked for a function registered with '
        'mmext.models.register_stages, for the names in `res_layers`, and '
        f'for `layer1`, `layer2` and so on; {reason}. Its modules are: '
        f'{", ".join(children) or "none"}. Use a backbone like ResNet, '
        f'register a function that lists the stages of {kind.__name__}, or '
        'choose an architecture that needs no stages, such as '
        'mmext.HardSharing'
    )


def run_stages(
    backbone: nn.Module, inputs: Tensor
) -> tuple[Any, list[StageMaps]]:
    """Run a backbone, and see what its stages compute.

    ``inputs``: What the backbone takes, ``(N, C, H, W)``. Returns the output
    of the backbone, and the maps of each stage; both with graph.

    Raises:
        TypeError: If the stages are not known, or one is not called with one
            map and does not return one.
        RuntimeError: If a stage does not run once, or runs without gradients
            within a reentrant checkpoint.
    """
    stages = stages_of(backbone)
    maps: dict[str, StageMaps] = {}
    handles = [
        stage.blocks[-1].register_forward_hook(
            partial(
                _record, type(backbone), stage, maps, torch.is_grad_enabled()
            )
        )
        for stage in stages
    ]
    try:
        output = backbone(inputs)
    finally:
        for handle in handles:
            handle.remove()
    for stage in stages:
        if stage.name not in maps:
            raise RuntimeError(
                f'{type(backbone).__name__} did not run the last block of '
                f'{stage.name}; register with mmext.models.register_stages '
                'the stages that its forward runs'
            )
    return output, [maps[stage.name] for stage in stages]


def _record(
    kind: type,
    stage: Stage,
    maps: dict[str, StageMaps],
    with_grad: bool,
    block: nn.Module,
    args: tuple[Any, ...],
    output: Any,
) -> None:
    """Forward hook of a last block."""
    where = f'{kind.__name__}.{stage.name}'
    for what, value in (
        ('takes', args[0] if len(args) == 1 else args),
        ('returns', output),
    ):
        if not isinstance(value, Tensor) or value.dim() != 4:
            shape = getattr(value, 'shape', '')
            raise TypeError(
                f'the last block of {where}, a {type(block).__name__}, must '
                'take and return one map (N, C, h, w), but it '
                f'{what} a {type(value).__name__} {tuple(shape) or ""}'
            )
    if stage.name in maps:
        raise RuntimeError(
            f'the last block of {where} ran twice in one forward; register '
            'with mmext.models.register_stages blocks that run once'
        )
    trained = (p.requires_grad for b in stage.blocks for p in b.parameters())
    if with_grad and not torch.is_grad_enabled() and any(trained):
        raise RuntimeError(
            f'{where} runs without gradients, as within a reentrant '
            'checkpoint: what is computed from it would not train it; use '
            "checkpoints that are not reentrant, such as mmext's, or with_cp "
            'of the backbone'
        )
    before = args[0] if len(stage.blocks) > 1 else output
    maps[stage.name] = StageMaps(before, output)


def backbone_channels(backbone: nn.Module) -> tuple[int, ...]:
    """Channels of the features that a backbone returns, shallow first.

    From ``out_channels`` of the backbone, one number or several, or from its
    stages: those of ``out_indices``, or the last.

    Raises:
        TypeError: If the backbone has neither.
    """
    channels = getattr(backbone, 'out_channels', None)
    if isinstance(channels, int):
        return (channels,)
    if channels is not None:
        return tuple(channels)
    stages = stages_of(backbone)
    indices = getattr(backbone, 'out_indices', (len(stages) - 1,))
    return tuple(stages[index].channels for index in indices)


def backbone_features(
    backbone: nn.Module,
    inputs: Tensor,
    channels: Sequence[int] | None = None,
) -> tuple[Tensor, ...]:
    """Features of a backbone, as a tuple also where there is one.

    ``inputs``: What the backbone takes; ``channels``: Those that the features
    must have. Returns maps ``(N, C, h, w)`` or vectors ``(N, C)``.

    Raises:
        TypeError: If the backbone returns anything else.
        ValueError: If the channels are not as expected.
    """
    output = backbone(inputs)
    features = (output,) if isinstance(output, Tensor) else output
    kind = type(backbone).__name__
    if not isinstance(features, tuple | list) or not all(
        isinstance(feature, Tensor) for feature in features
    ):
        raise TypeError(
            f'{kind} must return a tensor or a tuple of tensors, got a '
            f'{type(output).__name__} '
            f'{[type(f).__name__ for f in features] if features else ""}'
        )
    got = [feature.shape[1] for feature in features]
    if channels is not None and got != list(channels):
        raise ValueError(
            f'{kind} returns features with {got} channels, but in_channels '
            f'of the architecture says {list(channels)}'
        )
    return tuple(features)
