"""A model for several tasks, and the preprocessor of its batches."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.dist import all_reduce, get_world_size, is_distributed
from mmengine.model import BaseModel, ImgDataPreprocessor
from mmengine.structures import PixelData
from torch import Tensor, nn
from torch.nn import functional as F

from ...registry import MODELS


class TaskFeatures(NamedTuple):
    """What an architecture gives to the heads.

    Attributes:
        features: For each task its feature maps, ``(N, C, h, w)``, or vectors,
            ``(N, C)``; the deepest last.
        losses: Scalars that are added to the objective as they are, such as
            the load balance of a gate.
    """

    features: dict[str, tuple[Tensor, ...]]
    losses: dict[str, Tensor] = {}


@MODELS.register_module()
class MultiTaskModel(BaseModel):
    """A backbone that several tasks share, with a head for each task.

    The architecture decides what the tasks share (:class:`mmext.HardSharing`,
    :class:`mmext.MTAN`, :class:`mmext.MMoE`, :class:`mmext.CGC`), each head
    gives one loss, and the balancer weights the losses
    (:class:`mmext.EqualWeights`, :class:`mmext.DWA` and others). Everything
    that has parameters runs within ``forward``, so that the model needs
    neither ``find_unused_parameters`` nor ``static_graph`` under DDP.

    **Partial labels**: a sample may lack the field of a task, and a batch
    any valid label of it. In a training step a loss is the mean over the
    valid labels of all ranks; a task without one on any rank is left out of
    the balancer, what it remembers, and the aggregator, and its head gets
    gradients of 0.

    Args:
        backbone: Config of the backbone, of any host.
        architecture: Config of the architecture; it is built with the
            arguments ``backbone`` (the module) and ``tasks`` (their names).
        heads: Config of a head by the name of its task. A name has no dot and
            does not contain ``loss``. Tasks are in alphabetical order.
        balancer: Config of the balancer, built with the argument ``tasks``.
        data_preprocessor: Config of the data preprocessor, such as
            :class:`mmext.MultiTaskDataPreprocessor`.
        init_cfg: Initialization, as of any ``BaseModule``.

    Raises:
        ValueError: If there are no heads, or the name of one cannot be used.
    """

    def __init__(
        self,
        backbone: Mapping[str, Any],
        architecture: Mapping[str, Any],
        heads: Mapping[str, Mapping[str, Any]],
        balancer: Mapping[str, Any] | None = None,
        data_preprocessor: Mapping[str, Any] | None = None,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(data_preprocessor, init_cfg)
        _check_names(heads)
        # A config that was dumped has its keys sorted: the order must not
        # depend on it, as weights of tasks are vectors in this order.
        heads = {task: heads[task] for task in sorted(heads)}
        self.tasks = tuple(heads)
        self.backbone = MODELS.build(backbone)
        self.architecture = MODELS.build(
            {
                **architecture,
                'backbone': self.backbone,
                'tasks': self.tasks,
            }
        )
        self.heads = nn.ModuleDict(
            {task: MODELS.build(head) for task, head in heads.items()}
        )
        self.balancer = MODELS.build(
            {'type': 'mmext.EqualWeights', **(balancer or {})}
            | {'tasks': self.tasks}
        )
        self.separate_losses = False
        """Whether :meth:`parse_losses` returns a tuple of a loss per task.

        An optimizer wrapper for gradient surgery sets it.
        """

    def forward(
        self,
        inputs: Tensor,
        data_samples: Sequence[Any] | None = None,
        mode: str = 'tensor',
    ) -> Any:
        """Run all tasks.

        Args:
            inputs: Images ``(N, C, H, W)``, or whatever the backbone takes.
            data_samples: The N samples with their ``gt_*`` fields; needed by
                ``'loss'``.
            mode: ``'loss'`` returns losses and weights by name, ``'predict'``
                the samples with ``pred_*`` fields, ``'tensor'`` the output of
                each head by task.

        Raises:
            ValueError: For another mode, or ``'loss'`` without samples.
        """
        if mode not in ('loss', 'predict', 'tensor'):
            raise ValueError(
                f"mode must be 'loss', 'predict' or 'tensor', got {mode!r}"
            )
        if mode == 'loss' and data_samples is None:
            raise ValueError("mode='loss' needs data_samples, got None")
        features, losses = self.architecture(inputs)
        if mode == 'tensor':
            return {
                task: head(features[task]) for task, head in self.heads.items()
            }
        if mode == 'loss':
            return self._balanced(features, losses, data_samples)
        if data_samples is None:
            raise ValueError(
                "mode='predict' needs data_samples: predictions are written "
                'to them, in the size that they hold'
            )
        for task, head in self.heads.items():
            head.predict(features[task], data_samples)
        return data_samples

    def _balanced(
        self,
        features: Mapping[str, tuple[Tensor, ...]],
        extra: Mapping[str, Tensor],
        data_samples: Sequence[Any],
    ) -> dict[str, Tensor]:
        """Losses for the objective, and values for the log."""
        own, of_all, factors = self._count_valid(data_samples)
        losses = [
            head.loss(features[task], data_samples).float()
            for task, head in self.heads.items()
        ]
        raw = torch.stack([loss.detach() for loss in losses])
        terms, weights = self.balancer(raw * factors, of_all > 0)
        is_labelled = own.tolist()
        result = {}
        for index, task in enumerate(self.tasks):
            # The backward of a stack would pass zeros on to all other tasks.
            loss = losses[index] * factors[index]
            result[f'{task}.loss'] = terms[index] + weights[index] * (
                loss - loss.detach()
            )
            if is_labelled[index]:
                result[f'{task}.raw'] = raw[index]
            result[f'weight/{task}'] = weights[index]
        for name, value in extra.items():
            result[f'extra.loss_{name}'] = value
        return result

    def _count_valid(
        self, data_samples: Sequence[Any]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Valid labels ``(K,)`` of each task, of this rank and of all.

        The mean over ranks of the losses, times the factors that come third,
        is the mean over the valid labels of all ranks.
        """
        counts = {
            task: head.count_valid(data_samples)
            for task, head in self.heads.items()
            if hasattr(head, 'count_valid')
        }
        device = next(self.parameters()).device
        # A head that does not count has the same number on each rank.
        own = torch.stack(
            [
                counts.get(task, torch.tensor(1)).to(device).float()
                for task in self.tasks
            ]
        )
        # Only where it is needed: where one rank fails before it, the others
        # wait here until they time out.
        if not (self.training and counts and is_distributed()):
            return own, own, torch.ones_like(own)
        all_reduce(of_all := own.clone())
        return own, of_all, own * get_world_size() / of_all.clamp(min=1)

    def parse_losses(
        self, losses: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Objective, and values for the log.

        The objective is the sum of all losses. With ``separate_losses`` it is
        a tuple of the losses of the K tasks, to each of which a K-th part
        of the architecture's own losses is added: the sum is the same.

        Returns:
            The objective, ``()`` or K times ``()``, and scalars by name;
            ``loss`` is the sum.
        """
        total, logs = super().parse_losses(losses)
        logs = OrderedDict((n, v.detach()) for n, v in logs.items())
        if not self.separate_losses:
            return total, logs
        terms = tuple(losses[f'{task}.loss'] for task in self.tasks)
        extra = [v for n, v in losses.items() if n.startswith('extra.loss_')]
        if extra:
            part = torch.stack(extra).sum() / len(self.tasks)
            terms = tuple(term + part for term in terms)
        return terms, logs


def _check_names(heads: Mapping[str, Any]) -> None:
    if not heads:
        raise ValueError('heads must name at least one task, got none')
    for task in heads:
        if not task or '.' in task or '/' in task or 'loss' in task:
            raise ValueError(
                f'heads: {task!r} cannot be the name of a task: a name has no '
                "'.' or '/', as it becomes one of a module, and no 'loss', as "
                'MMEngine adds up all values with it'
            )


@MODELS.register_module()
class MultiTaskDataPreprocessor(ImgDataPreprocessor):
    """Normalizes and stacks inputs; in training it also pads ground truth.

    Images ``(C, H, W)`` of different sizes are padded at the bottom and on
    the right, and so is, in training, each ``gt_*`` field that is a
    ``PixelData``: label maps (integers) with ``seg_pad_val``, others with 0,
    which marks depth and normals that are not valid. Vectors ``(F,)`` are
    stacked as they are.

    Args:
        mean: Of the channels, in the order of the output; None for no
            normalization.
        std: Of the channels.
        pad_size_divisor: Height and width become multiples of it.
        pad_value: For images, after the normalization.
        seg_pad_val: For label maps; the ``ignore_index`` of the head.
        bgr_to_rgb: Swap channels 0 and 2.
        rgb_to_bgr: The same.
        non_blocking: Whether copies to the device may overlap.
    """

    def __init__(
        self,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        pad_size_divisor: int = 1,
        pad_value: float = 0,
        seg_pad_val: int = 255,
        bgr_to_rgb: bool = False,
        rgb_to_bgr: bool = False,
        non_blocking: bool | None = False,
    ) -> None:
        super().__init__(
            mean,
            std,
            pad_size_divisor,
            pad_value,
            bgr_to_rgb,
            rgb_to_bgr,
            non_blocking,
        )
        self.seg_pad_val = seg_pad_val

    def forward(
        self, data: Mapping[str, Any], training: bool = False
    ) -> dict[str, Any]:
        """Make a batch.

        Args:
            data: ``inputs``, a list of N tensors or a stacked one, and
                ``data_samples``, N samples or None.
            training: Pad ground truth to the size of the batch, which losses
                need; metrics compare with the original size.

        Returns:
            ``inputs`` ``(N, C, H, W)`` or ``(N, F)``, and ``data_samples``.

        Raises:
            ValueError: If vectors have different lengths, or a map of a
                sample is larger than the batch.
        """
        if data['inputs'][0].ndim == 1:
            data = self.cast_data(data)
            lengths = {len(vector) for vector in data['inputs']}
            if len(lengths) > 1:
                raise ValueError(
                    'inputs that are vectors must have one length, got '
                    f'{sorted(lengths)} in a batch'
                )
            inputs = data['inputs']
            if not isinstance(inputs, Tensor):
                inputs = torch.stack(list(inputs))
            return {
                'inputs': inputs,
                'data_samples': data.get('data_samples'),
            }
        data = super().forward(data, training)
        data.setdefault('data_samples', None)
        size = tuple(data['inputs'].shape[-2:])
        for sample in data['data_samples'] or ():
            sample.set_metainfo({'batch_input_shape': size})
            for name, value in sample.items():
                if (
                    training
                    and name.startswith('gt_')
                    and isinstance(value, PixelData)
                ):
                    sample.set_data({name: self._pad(value, size, name)})
        return data

    def _pad(
        self, value: PixelData, size: tuple[int, int], name: str
    ) -> PixelData:
        right = size[1] - value.data.shape[-1]
        bottom = size[0] - value.data.shape[-2]
        if right < 0 or bottom < 0:
            raise ValueError(
                f'{name} must not be larger than its batch of images, {size}, '
                f'got {tuple(value.data.shape[-2:])}; check the pipeline'
            )
        if not right and not bottom:
            return value
        fill = 0 if value.data.is_floating_point() else self.seg_pad_val
        return PixelData(
            data=F.pad(value.data, (0, right, 0, bottom), value=fill)
        )
