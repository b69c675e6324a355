"""How much better than single-task training: Delta_m."""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from mmengine.evaluator import Evaluator

from ..registry import EVALUATOR

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
