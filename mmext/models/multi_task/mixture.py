"""MMoE and CGC: experts on the features of one backbone, gated by task."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...registry import MODELS
from ...utils.tensors import float32_region, wide_type, widen
from .architecture import (
    Architecture,
    backbone_channels,
    backbone_features,
)
from .model import TaskFeatures


@MODELS.register_module()
class ConvExpert(nn.Module):
    """An expert on maps: at each level a bottleneck of convolutions.

    A 1x1 convolution, ``num_convs`` convolutions of ``kernel_size``, and a 1x1
    convolution, each with norm and activation.

    Args:
        in_channels: Channels of each level.
        channels: Channels that it returns, at each level; those of the level
            where None, so that heads fit as without experts.
        reduction: Channels that it returns, divided by those in between.
        num_convs: Convolutions in between, for each level.
        kernel_size: Of these, odd.
        norm_cfg: Config of the norms.
        act_cfg: Config of the activations.
    """

    input_dims = 4

    def __init__(
        self,
        in_channels: Sequence[int],
        channels: int | None = None,
        reduction: int = 4,
        num_convs: int = 1,
        kernel_size: int = 3,
        norm_cfg: Mapping[str, Any] | None = None,
        act_cfg: Mapping[str, Any] | None = None,
    ) -> None:
        from mmcv.cnn import ConvModule

        super().__init__()
        self.out_channels = tuple(channels or width for width in in_channels)
        config = {
            'norm_cfg': dict(norm_cfg or {'type': 'BN'}),
            'act_cfg': dict(act_cfg or {'type': 'ReLU'}),
        }
        self.levels = nn.ModuleList()
        for start, end in zip(in_channels, self.out_channels):
            width = max(end // reduction, 1)
            widths = [start, *[width] * (num_convs + 1), end]
            sizes = [1, *[kernel_size] * num_convs, 1]
            self.levels.append(
                nn.Sequential(
                    *(
                        ConvModule(*pair, size, padding=size // 2, **config)
                        for pair, size in zip(
                            itertools.pairwise(widths), sizes
                        )
                    )
                )
            )

    def forward(self, features: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """``features``: ``(N, C, h, w)`` each; returns the same sizes."""
        return tuple(
            level(feature) for level, feature in zip(self.levels, features)
        )


@MODELS.register_module()
class MLPExpert(nn.Module):
    """An expert on vectors: at each level some linear layers with ReLU.

    Args:
        in_channels: Channels of each level; one for most backbones.
        channels: Outputs of the layers, the last being the channels that it
            returns; one layer with the channels of the level where None.
        dropout: Probability in [0, 1) behind each layer.
    """

    input_dims = 2

    def __init__(
        self,
        in_channels: Sequence[int],
        channels: Sequence[int] | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        widths = [channels or (width,) for width in in_channels]
        self.out_channels = tuple(width[-1] for width in widths)
        self.levels = nn.ModuleList(
            linear_layers(start, width, dropout)
            for start, width in zip(in_channels, widths)
        )

    def forward(self, features: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """``features``: ``(N, C)`` each; returns ``(N, channels)`` each."""
        return tuple(
            level(feature) for level, feature in zip(self.levels, features)
        )


def linear_layers(
    in_channels: int, channels: Sequence[int], dropout: float
) -> nn.Sequential:
    """Linear layers, each with ReLU and, where above 0, dropout."""
    layers: list[nn.Module] = []
    for start, end in itertools.pairwise([in_channels, *channels]):
        layers += [nn.Linear(start, end), nn.ReLU(inplace=True)]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers)


class Mixture(Architecture):
    """Experts that all tasks share, experts of each task, one gate per task.

    With ``z`` the deepest feature, averaged over the map, and ``f_i`` the
    experts that task ``k`` may use, its features are::

        w_k = softmax(gate_k(z) / temperature)
        y_k = sum_i w_ki * f_i(features)

    at each level with the same ``w_k``. The backbone should return the levels
    that the heads use, and no others (``out_indices``): an expert has a branch
    for each, which is not trained where no head looks. The gates are linear,
    with bias; they work at any resolution. A task with one expert has no
    gate: its weight is 1.

    Args:
        backbone: The module that all tasks share.
        tasks: Names of the tasks.
        num_shared: Experts that all tasks use, at least 0.
        num_task: Further experts of each task, at least 0.
        expert: Config of an expert. The default ``type`` is
            :class:`mmext.MLPExpert` for a backbone whose ``feature_dims`` is 2
            (it returns vectors), else :class:`mmext.ConvExpert`. An expert is
            built with the argument ``in_channels``, takes the tuple of
            features and returns one, and has ``out_channels``.
        in_channels: Channels of each feature of the backbone; needed where
            the backbone does not say them.
        temperature: Above 0; smaller ones make the choice harder.
        top_k: A sample uses the ``top_k`` experts with the largest logits,
            and the softmax is over those, which is 2 or more (with 1 its
            weight is always 1 and trains no gate). All experts are still
            computed, so that each has a gradient in each step.
        balance_weight: Factor of the load balance, at least 0. Where above 0,
            ``losses['balance']`` is it times the squared coefficient of
            variation of the mean weights of the experts, over the samples
            of this process and the tasks that may use the expert: 0 where all
            are used alike.
        init_cfg: Initialization, as of any ``BaseModule``.

    Raises:
        ValueError: For a number out of its range.
        TypeError: If the channels are neither given nor known.
    """

    def __init__(
        self,
        backbone: nn.Module,
        tasks: Sequence[str],
        num_shared: int,
        num_task: int,
        expert: Mapping[str, Any] | None = None,
        in_channels: Sequence[int] | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        balance_weight: float = 0.0,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(backbone, tasks, init_cfg)
        self.num_experts = num_shared + num_task
        _check(self.num_experts, temperature, top_k, balance_weight)
        if in_channels is None:
            try:
                in_channels = backbone_channels(backbone)
            except TypeError as error:
                raise TypeError(
                    'the channels of the features are not known: give '
                    'in_channels of the architecture, one for each feature '
                    'that the backbone returns. The backbone has no '
                    f'`out_channels`, and {error}'
                ) from error
        self.in_channels = tuple(in_channels)
        self.temperature = temperature
        self.top_k = top_k
        self.balance_weight = balance_weight
        vectors = getattr(backbone, 'feature_dims', 4) == 2
        config = {
            'type': 'mmext.MLPExpert' if vectors else 'mmext.ConvExpert',
            **(expert or {}),
            'in_channels': self.in_channels,
        }

        def experts(number: int) -> nn.ModuleList:
            return nn.ModuleList(MODELS.build(config) for _ in range(number))

        self.shared_experts = experts(num_shared)
        self.task_experts = nn.ModuleDict(
            {task: experts(num_task) for task in self.tasks if num_task}
        )
        self.gates = nn.ModuleDict(
            {
                task: nn.Linear(self.in_channels[-1], self.num_experts)
                for task in self.tasks
                if self.num_experts > 1
            }
        )
        every = [*self.shared_experts, *self._own_experts()]
        self.out_channels = tuple(every[0].out_channels)

    def _own_experts(self) -> Iterable[nn.Module]:
        return itertools.chain.from_iterable(self.task_experts.values())

    def forward(self, inputs: Tensor) -> TaskFeatures:
        """Mixed features of each task; see :class:`Architecture`."""
        features = backbone_features(self.backbone, inputs, self.in_channels)
        self._check_dims(features)
        weights = self.gate_weights(features)
        shared = [expert(features) for expert in self.shared_experts]
        mixed = {}
        for task in self.tasks:
            outputs = list(shared)
            if task in self.task_experts:
                outputs += [e(features) for e in self.task_experts[task]]
            mixed[task] = tuple(
                _mix(level, weights[task]) for level in zip(*outputs)
            )
        losses = {}
        if self.balance_weight and self.num_experts > 1:
            losses['balance'] = self.balance_weight * self._imbalance(weights)
        return TaskFeatures(mixed, losses)

    def gate_weights(self, features: Sequence[Tensor]) -> dict[str, Tensor]:
        """Weights of the experts.

        ``features``: Those of the backbone, ``(N, C, h, w)`` or ``(N, C)``.
        Returns for each task ``(N, experts)``, shared experts first; rows sum
        to 1. They are float32 (float64 for such features), also within an
        autocast, in which near logits would become equal.
        """
        pooled = features[-1]
        if pooled.dim() == 4:
            pooled = pooled.mean((2, 3), dtype=wide_type(pooled))
        pooled = widen(pooled)
        if not self.gates:
            return dict.fromkeys(self.tasks, torch.ones_like(pooled[:, :1]))
        weights = {}
        for task, gate in self.gates.items():
            with float32_region(pooled):
                logits = gate(pooled.to(gate.weight.dtype))
            logits = widen(logits) / self.temperature
            if self.top_k is not None:
                chosen = logits.topk(self.top_k, dim=1).indices
                others = torch.ones_like(logits, dtype=torch.bool)
                others = others.scatter(1, chosen, False)
                logits = logits.masked_fill(others, -torch.inf)
            weights[task] = logits.softmax(dim=1)
        return weights

    def _imbalance(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Squared coefficient of variation of the use of the experts."""
        use = torch.stack([weights[task].mean(0) for task in self.tasks])
        number = len(self.shared_experts)
        use = torch.cat([use[:, :number].mean(0), use[:, number:].flatten()])
        return use.var(correction=0) / use.mean().square()

    def _check_dims(self, features: Sequence[Tensor]) -> None:
        every = [*self.shared_experts, *self._own_experts()]
        wanted = getattr(every[0], 'input_dims', None)
        shapes = [tuple(feature.shape) for feature in features]
        if wanted and any(len(shape) != wanted for shape in shapes):
            raise ValueError(
                f'{type(every[0]).__name__} takes tensors of {wanted} '
                f'dimensions, but {type(self.backbone).__name__} returns '
                f'{shapes}; set expert=dict(type=...) of the architecture to '
                'mmext.ConvExpert for maps (N, C, h, w), to mmext.MLPExpert '
                'for vectors (N, C)'
            )


@MODELS.register_module()
class MMoE(Mixture):
    """Multi-gate mixture of experts: all tasks use all experts.

    Experts are branches on the features of the backbone, and the gates see
    its deepest feature, averaged over the map; in LibMTL an expert is a whole
    encoder, and the gates see the pixels of an image of fixed size.

    Args:
        backbone: The module that all tasks share.
        tasks: Names of the tasks.
        num_experts: At least 1.
        kwargs: ``expert``, ``in_channels``, ``temperature``, ``top_k``,
            ``balance_weight``, ``init_cfg`` of :class:`Mixture`.

    Source:
        Modeling Task Relationships in Multi-task Learning with Multi-gate
        Mixture-of-Experts, KDD 2018; top-k gates and the balance after
        arXiv 1701.06538.
    """

    def __init__(
        self,
        backbone: nn.Module,
        tasks: Sequence[str],
        num_experts: int = 4,
        **kwargs: Any,
    ) -> None:
        _at_least_one('num_experts', num_experts)
        super().__init__(backbone, tasks, num_experts, 0, **kwargs)


@MODELS.register_module()
class CGC(Mixture):
    """Customized gate control: shared experts, and some of each task's own.

    Args:
        backbone: The module that all tasks share.
        tasks: Names of the tasks.
        num_shared_experts: Experts that all tasks use, at least 1.
        num_task_experts: Experts of each task, at least 1.
        kwargs: ``expert``, ``in_channels``, ``temperature``, ``top_k``,
            ``balance_weight``, ``init_cfg`` of :class:`Mixture`.

    Source:
        Progressive Layered Extraction, RecSys 2020, with one layer of
        extraction. Experts and gates are those of :class:`mmext.MMoE`.
    """

    def __init__(
        self,
        backbone: nn.Module,
        tasks: Sequence[str],
        num_shared_experts: int = 2,
        num_task_experts: int = 1,
        **kwargs: Any,
    ) -> None:
        _at_least_one('num_shared_experts', num_shared_experts)
        _at_least_one('num_task_experts', num_task_experts)
        super().__init__(
            backbone, tasks, num_shared_experts, num_task_experts, **kwargs
        )


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f'{name} must be at least 1, got {value}')


def _check(
    experts: int, temperature: float, top_k: int | None, balance: float
) -> None:
    if not temperature > 0:
        raise ValueError(f'temperature must be above 0, got {temperature}')
    if not balance >= 0:
        raise ValueError(f'balance_weight must be at least 0, got {balance}')
    if top_k is not None and not 2 <= top_k <= experts:
        raise ValueError(
            f'top_k must be None, or from 2 (with 1 no gate is trained) to '
            f'{experts}, the experts of a task, got {top_k}'
        )


def _mix(outputs: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Weighted sum; ``outputs``: E of ``(N, ...)``; ``weights``: (N, E)."""
    shape = (-1, *[1] * (outputs[0].dim() - 1))
    weights = weights.to(outputs[0].dtype)
    total = outputs[0] * weights[:, 0].view(shape)
    for index in range(1, len(outputs)):
        total = total + outputs[index] * weights[:, index].view(shape)
    return total
