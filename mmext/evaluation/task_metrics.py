"""Metrics of depth, normals, classes and numbers, and their mean gain Delta_m.

Each sample gives a few sums, which are gathered over ranks and added; a pixel
counts the same wherever it is. MMEngine takes away the samples that a sampler
repeats to give all ranks the same number.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.evaluator import BaseMetric, Evaluator
from torch import Tensor

from ..registry import EVALUATOR, METRICS

# Which way metrics of ours and of mmseg.IoUMetric are better.
_HIGHER = (
    'mIoU',
    'aAcc',
    'mAcc',
    'mDice',
    'mFscore',
    'accuracy',
    'within_11.25',
    'within_22.5',
    'within_30',
)
_LOWER = ('abs_err', 'rel_err', 'rmse', 'mean', 'median', 'mae')


class _TaskMetric(BaseMetric):
    """Metric of the field that a head of the same ``target`` predicts."""

    ignored = 0.0
    """Value of a truth that does not count."""

    def __init__(self, target: str, **kwargs: Any):
        if not target.startswith('gt_'):
            raise ValueError(f"target must begin with 'gt_', got {target!r}")
        name = target.removeprefix('gt_')
        super().__init__(**{'prefix': name, **kwargs})
        self.target, self.prediction = target, f'pred_{name}'

    def _fields(self, sample: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Prediction and truth, of the same shape and on one device.

        A sample may lack the truth: it gets one that does not count.
        """
        if self.prediction not in sample:
            raise KeyError(
                f'the data sample must have {self.prediction}, got '
                f'{sorted(sample)}; see target of the metric, and of the '
                'head that predicts it'
            )
        pred, true = (
            value if isinstance(value, Tensor | None) else value['data']
            for value in (sample[self.prediction], sample.get(self.target))
        )
        if true is None:
            true = torch.full_like(pred, self.ignored)
        if pred.shape != true.shape:
            raise ValueError(
                f'{self.prediction} and {self.target} must have the same '
                f'shape, got {tuple(pred.shape)} and {tuple(true.shape)}'
            )
        return pred, true.to(pred.device)


@METRICS.register_module()
class DepthMetric(_TaskMetric):
    """Errors of depth over all valid pixels of the set.

    With depth ``d`` > 0 and prediction ``p``, both in metres:

    * ``abs_err``: mean of ``|p - d|`` in metres;
    * ``rel_err``: mean of ``|p - d| / d``;
    * ``rmse``: root of the mean of ``(p - d) ** 2`` in metres.

    All are NaN if no pixel is valid.

    Args:
        target: Field with the truth, ``(1, H, W)`` pixels, 0 is invalid; the
            prediction is in the field with ``pred_`` for ``gt_``.
        **kwargs: Of ``mmengine.evaluator.BaseMetric``. The prefix is by
            default ``target`` without ``gt_``.
    """

    def __init__(self, target: str = 'gt_depth', **kwargs: Any):
        super().__init__(target, **kwargs)

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Add the sums of each image."""
        for sample in data_samples:
            pred, true = self._fields(sample)
            valid = true > 0
            true = true[valid].double()
            error = (pred[valid].double() - true).abs()
            sums = error.sum(), (error / true).sum(), error.square().sum()
            self.results.append((len(true), *(float(x) for x in sums)))

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Means over the pixels of all images."""
        count, error, relative, squared = np.sum(results, axis=0)
        count = count or math.nan
        return {
            'abs_err': float(error / count),
            'rel_err': float(relative / count),
            'rmse': math.sqrt(squared / count),
        }


def _angles(pred: Tensor, true: Tensor) -> Tensor:
    """Angle between vectors ``(3, n)`` in degrees, ``(n,)`` float64.

    A vector of zeros is at right angles to all others.
    """
    pred, true = pred.double(), true.double()
    sine = torch.linalg.cross(pred, true, dim=0).norm(dim=0)
    cosine = (pred * true).sum(0)
    angles = torch.rad2deg(torch.atan2(sine, cosine))
    return torch.where((pred == 0).all(0), angles.new_tensor(90.0), angles)


@METRICS.register_module()
class SurfaceNormalMetric(_TaskMetric):
    """Angles between normals over all valid pixels of the set.

    ``mean`` and ``median`` are in degrees, ``within_11.25``, ``within_22.5``
    and ``within_30`` are the percentage of pixels whose angle is smaller.
    The median is that of all pixels of the set, not a mean of medians; it is
    read from a histogram and is right to 0.05 degrees, all else is exact.
    All are NaN if no pixel is valid; mean and median if a prediction is NaN.

    Args:
        target: Field with the truth, ``(3, H, W)`` pixels, (0, 0, 0) is
            invalid; the prediction is in the field with ``pred_`` for
            ``gt_``. It need not have length 1; (0, 0, 0) counts as 90
            degrees.
        **kwargs: Of ``mmengine.evaluator.BaseMetric``. The prefix is by
            default ``target`` without ``gt_``.
    """

    LIMITS = (11.25, 22.5, 30.0)
    RESOLUTION = 0.05
    _BINS = round(180 / RESOLUTION)

    def __init__(self, target: str = 'gt_normal', **kwargs: Any):
        super().__init__(target, **kwargs)

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Add the sums and the histogram of each image."""
        for sample in data_samples:
            pred, true = self._fields(sample)
            valid = (true != 0).any(0)
            angles = _angles(pred[:, valid], true[:, valid])
            within = [int((angles < limit).sum()) for limit in self.LIMITS]
            finite = angles[angles.isfinite()] / self.RESOLUTION
            bins = finite.long().clamp_(max=self._BINS - 1)
            histogram = torch.bincount(bins, minlength=self._BINS)
            self.results.append(
                (
                    np.array([len(angles), float(angles.sum()), *within]),
                    histogram.cpu().numpy().astype(np.int32),
                )
            )

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Values over the pixels of all images."""
        count, total, *within = sum(sums for sums, _ in results)
        count = count or math.nan
        mean = float(total / count)
        histogram = sum(part.astype(np.int64) for _, part in results)
        median = math.nan
        if not math.isnan(mean):
            # The angle below which half of the pixels are, even in a bin.
            below = np.cumsum(histogram)
            bin_ = int(np.searchsorted(below, below[-1] / 2))
            inside = (below[-1] / 2 - below[bin_]) / histogram[bin_] + 1
            median = float((bin_ + inside) * self.RESOLUTION)
        shares = {
            f'within_{limit:g}': float(100 * number / count)
            for limit, number in zip(self.LIMITS, within)
        }
        return {'mean': mean, 'median': median, **shares}


@METRICS.register_module()
class ClassificationTaskMetric(_TaskMetric):
    """Percentage of samples whose class is predicted: ``accuracy``.

    NaN if no sample has a class.

    Args:
        target: Field with the class, an integer 0-d tensor; the prediction
            is in the field with ``pred_`` for ``gt_``.
        ignore_index: Class of samples that do not count.
        **kwargs: Of ``mmengine.evaluator.BaseMetric``. The prefix is by
            default ``target`` without ``gt_``.
    """

    def __init__(
        self, target: str = 'gt_label', ignore_index: int = 255, **kwargs: Any
    ):
        super().__init__(target, **kwargs)
        self.ignored = ignore_index

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Add whether each sample counts, and is right."""
        for sample in data_samples:
            pred, true = self._fields(sample)
            if pred.numel() != 1 or pred.is_floating_point():
                raise ValueError(
                    f'{self.prediction} must be one class index, got '
                    f'{pred.dtype} of shape {tuple(pred.shape)}'
                )
            counts = int(true != self.ignored)
            self.results.append((counts, counts * int(pred == true)))

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Mean over the samples, in percent."""
        count, right = np.sum(results, axis=0)
        return {'accuracy': 100 * float(right / (count or math.nan))}


@METRICS.register_module()
class RegressionTaskMetric(_TaskMetric):
    """Errors of numbers: ``mae``, mean of ``|p - y|``, and ``rmse``.

    Means are over all numbers of all samples whose truth is not NaN, in the
    unit of the target; NaN if there is none.

    Args:
        target: Field with the truth, 0-d or ``(D,)``; the prediction is in
            the field with ``pred_`` for ``gt_``.
        **kwargs: Of ``mmengine.evaluator.BaseMetric``. The prefix is by
            default ``target`` without ``gt_``.
    """

    ignored = math.nan

    def __init__(self, target: str = 'gt_value', **kwargs: Any):
        super().__init__(target, **kwargs)

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Add the sums of each sample."""
        for sample in data_samples:
            pred, true = self._fields(sample)
            valid = ~true.isnan()
            error = (pred[valid].double() - true[valid].double()).abs()
            self.results.append(
                (error.numel(), float(error.sum()), float((error**2).sum()))
            )

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Means over all numbers."""
        count, error, squared = np.sum(results, axis=0)
        count = count or math.nan
        return {
            'mae': float(error / count),
            'rmse': math.sqrt(squared / count),
        }


def delta_m(
    metrics: Mapping[str, float],
    baseline: Mapping[str, float],
    higher_is_better: Mapping[str, bool] | None = None,
) -> dict[str, float]:
    """Mean relative gain over a baseline, in percent; above 0 is better.

    The gain of a value ``x`` over ``b`` is ``(x - b) / b`` where higher is
    better, else ``(b - x) / b``. It is averaged over the values of each
    task, then over the tasks, as LibMTL does; papers that count a loss as
    positive have the opposite sign.

    Args:
        metrics: Values by name, ``'<task>/<value>'``.
        baseline: The values to compare, of models trained for one task;
            those that only ``metrics`` has do not count.
        higher_is_better: By the name of the value without the task, for
            those that are not of mmext's metrics or of ``mmseg.IoUMetric``.

    Returns:
        ``delta_m`` and ``delta_m/<task>``.

    Raises:
        ValueError: If a value of the baseline is missing in ``metrics``, is
            0 or not finite, or if it is not known which way it is better.

    Examples:
        >>> delta_m({'depth/rmse': 1.5}, {'depth/rmse': 2.0})['delta_m']
        25.0
    """
    better = {**dict.fromkeys(_HIGHER, True), **dict.fromkeys(_LOWER, False)}
    better.update(higher_is_better or {})
    if not baseline:
        raise ValueError('baseline must have at least one value, got none')
    gains = defaultdict(list)
    for name, base in baseline.items():
        task, _, value = name.rpartition('/')
        if value not in better:
            raise ValueError(
                f'higher_is_better must have {value!r} of the baseline, True '
                'or False: it is not known which way it is better'
            )
        if name not in metrics:
            raise ValueError(
                f'baseline must have names of metrics, got {name!r}, which '
                f'is none of {sorted(metrics)}'
            )
        if not base or not math.isfinite(base):
            raise ValueError(
                f'baseline must be finite and not 0, got {name}={base}'
            )
        gain = 100 * (metrics[name] - base) / base
        gains[task].append(gain if better[value] else -gain)
    means = {task: sum(own) / len(own) for task, own in gains.items()}
    result = {'delta_m': sum(means.values()) / len(means)}
    result.update({f'delta_m/{task}': mean for task, mean in means.items()})
    return result


@EVALUATOR.register_module()
class MultiTaskEvaluator(Evaluator):
    """Evaluator that adds :func:`delta_m` to the values of its metrics.

    For ``val_evaluator`` and ``test_evaluator``: the key ``metrics`` makes
    MMEngine build it. ``save_best='delta_m'`` of the checkpoint hook then
    keeps the model that is best for all tasks.

    Args:
        metrics: As of ``mmengine.evaluator.Evaluator``; give each a
            ``prefix``, the task.
        baseline: Values to compare with; empty for none, then it is an
            ordinary evaluator.
        higher_is_better: See :func:`delta_m`.
    """

    def __init__(
        self,
        metrics: Any,
        baseline: Mapping[str, float] | None = None,
        higher_is_better: Mapping[str, bool] | None = None,
    ):
        super().__init__(metrics)
        self.baseline = dict(baseline or {})
        self.higher_is_better = dict(higher_is_better or {})

    def evaluate(self, size: int) -> dict:
        """Values of all metrics, ``delta_m`` and ``delta_m/<task>``."""
        metrics = super().evaluate(size)
        if self.baseline:
            metrics.update(
                delta_m(metrics, self.baseline, self.higher_is_better)
            )
        return metrics
