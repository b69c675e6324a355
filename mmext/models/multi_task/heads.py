"""Heads of a multi-task model: one output, one loss, one prediction each."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.model import BaseModule
from mmengine.structures import PixelData
from torch import Tensor, nn
from torch.nn import functional as F

from ...registry import MODELS
from ..losses.resized_logits import ResizedLogits

_CHECKED = {'type': 'mmext.CheckedCrossEntropyLoss'}


class TaskHead(BaseModule):
    """Base of the heads.

    A head of your own needs ``forward``, ``loss`` and ``predict`` only. With
    :meth:`count_valid` the model can also handle its partial labels.

    Args:
        target: Field of the samples with the ground truth. Predictions are
            written to the field with ``pred_`` instead of ``gt_``.
        loss_weight: Factor of the loss, before any balancer.
        init_cfg: Initialization, as of any ``BaseModule``.

    Raises:
        ValueError: If ``target`` does not begin with ``gt_``.
    """

    # Used for a missing label; it does not count.
    _missing: float = 0

    def __init__(
        self, target: str, loss_weight: float = 1.0, init_cfg: Any = None
    ) -> None:
        super().__init__(init_cfg)
        if not target.startswith('gt_'):
            raise ValueError(f"target must begin with 'gt_', got {target!r}")
        self.target = target
        self.prediction = 'pred_' + target.removeprefix('gt_')
        self.loss_weight = loss_weight
        self._told = False

    def forward(self, features: tuple[Tensor, ...]) -> Tensor:
        """Output ``(N, D)`` or ``(N, D, h, w)`` of the features of a task."""
        raise NotImplementedError

    def loss(
        self, features: tuple[Tensor, ...], data_samples: Sequence[Any]
    ) -> Tensor:
        """Scalar loss in float32; 0 with a gradient where nothing is valid.

        Samples without the field ``target`` do not count.

        Raises:
            TypeError: If the field of a sample holds no tensor.
        """
        output, truth = self(features), self._targets(data_samples)
        if truth is None:
            return output.float().sum() * 0
        return self.loss_weight * self._error(output, truth)

    def _error(self, output: Tensor, truth: Tensor) -> Tensor:
        """Mean over the labels that count, in float32."""
        raise NotImplementedError

    def predict(
        self, features: tuple[Tensor, ...], data_samples: Sequence[Any]
    ) -> None:
        """Write the predictions into the samples."""
        raise NotImplementedError

    def count_valid(self, data_samples: Sequence[Any]) -> Tensor:
        """Number of valid labels of all samples, an int64 scalar.

        Raises:
            TypeError: If the field of a sample holds no tensor.
        """
        truths = [v for v in map(self._truth, data_samples) if v is not None]
        if truths:
            return sum(self._valid(truth).sum() for truth in truths)
        if not self._told and self.training:
            self._told = True
            fields = {name for one in data_samples for name, _ in one.items()}
            print_log(
                f'no sample of a batch has {self.target}, so '
                f'{type(self).__name__} learns nothing from it; the samples '
                f'have {sorted(fields)}. '
                'If this is so in all batches, check the pipeline or the '
                'target of the head (logged once)',
                'current',
                logging.WARNING,
            )
        return torch.tensor(0)

    def _valid(self, truth: Tensor) -> Tensor:
        """Which labels of one sample, or of several, count."""
        return torch.ones_like(truth, dtype=torch.bool)

    def _truth(self, sample: Any) -> Tensor | None:
        value = sample.get(self.target)
        value = getattr(value, 'data', value)
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(
                f'{self.target} of a sample must be a tensor, or PixelData of '
                f'one, for {type(self).__name__}, got {type(value).__name__}; '
                'check the pipeline, or the target of the head'
            )
        return value

    def _targets(self, data_samples: Sequence[Any]) -> Tensor | None:
        """Ground truth of all samples, stacked; None if no sample has any."""
        truths = [self._truth(sample) for sample in data_samples]
        known = next((v for v in truths if v is not None), None)
        if known is None:
            return None
        empty = torch.full_like(known, self._missing)
        return torch.stack([empty if v is None else v for v in truths])


class _DenseTaskHead(TaskHead):
    """A head with an output for each pixel, made by a head of MMSeg."""

    def __init__(
        self,
        decode_head: Mapping[str, Any],
        out_channels: int,
        target: str,
        loss_weight: float,
        init_cfg: Any,
    ) -> None:
        super().__init__(target, loss_weight, init_cfg)
        taken = {'num_classes', 'out_channels', 'loss_decode'} & {*decode_head}
        if taken:
            raise ValueError(
                f'decode_head: {", ".join(sorted(taken))} cannot be set, '
                f'{type(self).__name__} sets it'
            )
        self.decode_head = MODELS.build(
            {
                'threshold': 0.5,  # unused; without it MMSeg warns
                **decode_head,
                'num_classes': out_channels,
                'out_channels': out_channels,
                'loss_decode': dict(_CHECKED),
            }
        )

    def forward(self, features: tuple[Tensor, ...]) -> Tensor:
        """``(N, D, h, w)``, at the resolution of the decode head."""
        return self.decode_head(features)

    def _resize(self, output: Tensor, size: Sequence[int]) -> Tensor:
        return F.interpolate(
            output.float(),
            tuple(size),
            mode='bilinear',
            align_corners=self.decode_head.align_corners,
        )

    def predict(
        self, features: tuple[Tensor, ...], data_samples: Sequence[Any]
    ) -> None:
        """Write the predictions.

        Their size is that of the ground truth if a sample has it, else the
        original size of the image.
        """
        output = self(features)
        for one, sample in zip(output, data_samples, strict=True):
            meta = sample.metainfo
            size = meta.get('img_shape') or meta.get('ori_shape')
            size = tuple(size or one.shape[-2:])[:2]
            whole = self._resize(
                one[None], meta.get('batch_input_shape', size)
            )
            whole = whole[..., : size[0], : size[1]]
            truth = getattr(sample.get(self.target), 'data', None)
            if truth is not None:
                size = tuple(truth.shape[-2:])
            else:
                size = tuple(meta.get('ori_shape') or size)[:2]
            if whole.shape[-2:] != size:
                whole = self._resize(whole, size)
            sample.set_data(
                {self.prediction: PixelData(data=self._decide(whole[0]))}
            )

    def _decide(self, output: Tensor) -> Tensor:
        """Prediction of an output ``(D, H, W)``."""
        return output


@MODELS.register_module()
class SegmentationTaskHead(_DenseTaskHead):
    """Semantic segmentation.

    The loss, on logits that count as resized to the size of the label map, is
    the mean over the pixels that are not ignored.

    Args:
        decode_head: Config of a decode head of MMSegmentation, without
            ``num_classes`` and losses.
        num_classes: Number of classes, at least 2.
        loss: Config of :class:`mmext.CheckedCrossEntropyLoss` or of a loss
            that takes the same arguments.
        ignore_index: Label of pixels that do not count.
        target: Field with label maps: ``PixelData`` of ``(1, H, W)``, int64.
        loss_weight: Factor of the loss, before any balancer.
        init_cfg: Initialization, as of any ``BaseModule``.
    """

    def __init__(
        self,
        decode_head: Mapping[str, Any],
        num_classes: int,
        loss: Mapping[str, Any] | None = None,
        ignore_index: int = 255,
        target: str = 'gt_sem_seg',
        loss_weight: float = 1.0,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(
            decode_head, num_classes, target, loss_weight, init_cfg
        )
        self.num_classes = num_classes
        self.ignore_index = self._missing = ignore_index
        default = {**_CHECKED, 'denominator': 'valid'}
        self.criterion = MODELS.build(dict(loss or default))

    def _error(self, output: Tensor, truth: Tensor) -> Tensor:
        """Cross-entropy."""
        label = truth.squeeze(1)
        resized = ResizedLogits(
            output, label.shape[1:], self.decode_head.align_corners
        )
        return self.criterion(resized, label, ignore_index=self.ignore_index)

    def _valid(self, truth: Tensor) -> Tensor:
        return truth != self.ignore_index

    def _decide(self, output: Tensor) -> Tensor:
        return output.argmax(0, keepdim=True)


@MODELS.register_module()
class DepthTaskHead(_DenseTaskHead):
    """Depth, by the mean absolute error over the valid pixels.

    A pixel is valid where its true depth is over 0.

    Args:
        decode_head: Config of a decode head of MMSegmentation, without
            ``num_classes`` and losses.
        target: Field with depth: ``PixelData`` of ``(1, H, W)``, float32.
        loss_weight: Factor of the loss, before any balancer.
        init_cfg: Initialization, as of any ``BaseModule``.
    """

    def __init__(
        self,
        decode_head: Mapping[str, Any],
        target: str = 'gt_depth',
        loss_weight: float = 1.0,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(decode_head, 1, target, loss_weight, init_cfg)

    def _error(self, output: Tensor, truth: Tensor) -> Tensor:
        """Mean absolute error."""
        error = (self._resize(output, truth.shape[-2:]) - truth).abs()
        return _mean(error, self._valid(truth))

    def _valid(self, truth: Tensor) -> Tensor:
        return truth > 0


@MODELS.register_module()
class SurfaceNormalTaskHead(_DenseTaskHead):
    """Surface normals, by one minus the mean cosine over the valid pixels.

    A pixel is valid where its true normal is not ``(0, 0, 0)``. Predictions
    are unit vectors.

    Args:
        decode_head: Config of a decode head of MMSegmentation, without
            ``num_classes`` and losses.
        target: Field with normals: ``PixelData`` of ``(3, H, W)``, float32.
        loss_weight: Factor of the loss, before any balancer.
        init_cfg: Initialization, as of any ``BaseModule``.
    """

    def __init__(
        self,
        decode_head: Mapping[str, Any],
        target: str = 'gt_normal',
        loss_weight: float = 1.0,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(decode_head, 3, target, loss_weight, init_cfg)

    def _error(self, output: Tensor, truth: Tensor) -> Tensor:
        """Mean of one minus the cosine."""
        output = self._resize(output, truth.shape[-2:])
        cosine = (F.normalize(output, dim=1) * truth).sum(1, keepdim=True)
        return _mean(1 - cosine, self._valid(truth))

    def _valid(self, truth: Tensor) -> Tensor:
        return truth.any(-3, keepdim=True)

    def _decide(self, output: Tensor) -> Tensor:
        return F.normalize(output, dim=0)


class _VectorTaskHead(TaskHead):
    """A linear layer on features ``(N, C)``, or on the mean of a map."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        target: str,
        loss_weight: float,
        in_index: int,
        init_cfg: Any,
    ) -> None:
        super().__init__(target, loss_weight, init_cfg)
        self.in_index = in_index
        self.linear = nn.Linear(in_channels, out_channels)

    def forward(self, features: tuple[Tensor, ...]) -> Tensor:
        """``(N, D)``."""
        vector = features[self.in_index]
        return self.linear(
            vector.flatten(2).mean(2) if vector.ndim > 2 else vector
        )


@MODELS.register_module()
class ClassificationTaskHead(_VectorTaskHead):
    """One class for each sample.

    Args:
        in_channels: Channels of the feature.
        num_classes: Number of classes, at least 2.
        target: Field with the class: int64, ``()``.
        loss: Config of :class:`mmext.CheckedCrossEntropyLoss` or of a loss
            that takes the same arguments.
        ignore_index: Label of samples that do not count.
        loss_weight: Factor of the loss, before any balancer.
        in_index: Which feature of the task.
        init_cfg: Initialization, as of any ``BaseModule``.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        target: str = 'gt_label',
        loss: Mapping[str, Any] | None = None,
        ignore_index: int = 255,
        loss_weight: float = 1.0,
        in_index: int = -1,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(
            in_channels, num_classes, target, loss_weight, in_index, init_cfg
        )
        self.num_classes = num_classes
        self.ignore_index = self._missing = ignore_index
        default = {**_CHECKED, 'denominator': 'valid'}
        self.criterion = MODELS.build(dict(loss or default))

    def _error(self, output: Tensor, truth: Tensor) -> Tensor:
        """Cross-entropy."""
        return self.criterion(
            output, truth.reshape(-1), ignore_index=self.ignore_index
        )

    def _valid(self, truth: Tensor) -> Tensor:
        return truth != self.ignore_index

    def predict(
        self, features: tuple[Tensor, ...], data_samples: Sequence[Any]
    ) -> None:
        """Write the class, int64 ``()``, and ``<field>_scores``, ``(C,)``."""
        scores = self(features).float().softmax(1)
        for one, sample in zip(scores, data_samples, strict=True):
            sample.set_data(
                {
                    self.prediction: one.argmax(),
                    f'{self.prediction}_scores': one,
                }
            )


@MODELS.register_module()
class RegressionTaskHead(_VectorTaskHead):
    """Numbers for each sample, by the mean absolute or squared error.

    Args:
        in_channels: Channels of the feature.
        out_channels: Number of values of a sample.
        target: Field with the values: float32, ``()`` or ``(D,)``. NaN marks
            a value that does not count.
        loss: ``'l1'``, ``'mse'`` or ``'smooth_l1'``.
        loss_weight: Factor of the loss, before any balancer.
        in_index: Which feature of the task.
        init_cfg: Initialization, as of any ``BaseModule``.

    Raises:
        ValueError: For another ``loss``.
    """

    _missing = math.nan
    _LOSSES = {
        'l1': F.l1_loss,
        'mse': F.mse_loss,
        'smooth_l1': F.smooth_l1_loss,
    }

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 1,
        target: str = 'gt_value',
        loss: str = 'l1',
        loss_weight: float = 1.0,
        in_index: int = -1,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, target, loss_weight, in_index, init_cfg
        )
        if loss not in self._LOSSES:
            raise ValueError(
                f'loss must be one of {sorted(self._LOSSES)}, got {loss!r}'
            )
        self.error = self._LOSSES[loss]

    def _error(self, output: Tensor, truth: Tensor) -> Tensor:
        """Mean error over the values that count."""
        output = output.float()
        values = truth.reshape(output.shape)
        valid = self._valid(values)
        # Not NaN * 0, which is NaN.
        values = torch.where(valid, values, output.detach())
        error = self.error(output, values.float(), reduction='none')
        return _mean(error, valid)

    def _valid(self, truth: Tensor) -> Tensor:
        return ~truth.isnan()

    def predict(
        self, features: tuple[Tensor, ...], data_samples: Sequence[Any]
    ) -> None:
        """Write the values, float32, ``(D,)`` or as in the ground truth."""
        for one, sample in zip(
            self(features).float(), data_samples, strict=True
        ):
            truth = sample.get(self.target)
            if truth is not None:
                one = one.reshape(truth.shape)
            sample.set_data({self.prediction: one})


def _mean(error: Tensor, valid: Tensor) -> Tensor:
    """Mean over what is valid; 0 with a gradient of 0 where nothing is."""
    return (error * valid).sum() / valid.sum().clamp(min=1)
