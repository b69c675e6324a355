"""Balancers that learn from the losses of earlier steps and epochs."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...registry import MODELS
from .balancers import (
    EPS,
    NO_SHARE,
    BalancedLosses,
    LossBalancer,
    around_mean,
)


class _EpochMeans(LossBalancer):
    """Averages the raw losses over ranks and over epochs, or intervals.

    A loss that is not finite, or without a valid label, does not count.
    """

    needs_hook = uses_mean = uses_epochs = True
    _state = ('sums', 'counts', 'num_epochs')

    def __init__(
        self,
        tasks: Sequence[str],
        interval: int | None = None,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(tasks, init_cfg)
        if interval is not None and interval < 1:
            raise ValueError(f'interval must be positive, got {interval}')
        self.interval, self.num_epochs = interval, 0
        self._vector('sums', 0.0)
        self._vector('counts', 0.0)
        self.sums = self.sums.double()

    def after_step(self) -> None:
        """Add the losses of a step."""
        if self.last_losses is None:
            return
        known = self.last_losses.isfinite() & self.present
        self.sums += self.last_losses.where(known, 0)
        self.counts += known

    def end_epoch(self) -> None:
        """Use the means, NaN for a task without any finite loss."""
        self._use((self.sums / self.counts).to(self.counts))
        self.num_epochs += 1
        self.sums.zero_()
        self.counts.zero_()

    def _use(self, means: Tensor) -> None:
        raise NotImplementedError


@MODELS.register_module()
class DWA(_EpochMeans):
    """Dynamic Weight Average: tasks whose loss falls slowly weigh more.

    Liu et al., "End-to-End Multi-Task Learning with Attention", CVPR 2019:
    ``K softmax(r / T)``, where ``r`` is the mean loss of the last epoch
    divided by that of the one before. The weights of the first two epochs are
    1; they always add up to K.

    The means are those of raw losses over all batches and ranks: each step
    averages K numbers over the ranks in its forward. So the state is the same
    on all ranks, and a checkpoint within an epoch, which rank 0 writes, has
    all of it.

    Losses that are not finite, or of batches without a valid label, are left
    out of the mean. A task without any other in an epoch keeps its last mean
    and its weight; those of the others add up to their number. Where the mean
    of the epoch before the last is not greater than 1e-8, or not known, ``r``
    is 1.

    Args:
        tasks: Names of the K tasks.
        temperature: ``T``, positive; the greater, the more equal the weights.
        interval: Iterations instead of an epoch, which
            ``IterBasedTrainLoop`` does not have.

    Raises:
        ValueError: If ``temperature`` or ``interval`` is not positive.
    """

    _state = (*_EpochMeans._state, 'previous', 'older', 'weights')

    def __init__(
        self,
        tasks: Sequence[str],
        temperature: float = 2.0,
        interval: int | None = None,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(tasks, interval, init_cfg)
        if not temperature > 0:
            raise ValueError(
                f'temperature must be positive, got {temperature}'
            )
        self.temperature = temperature
        self._vector('previous', math.nan)
        self._vector('older', math.nan)
        self._vector('weights', 1.0)

    def balance(self, losses: Tensor, mean: Tensor) -> BalancedLosses:
        """The weights of this epoch."""
        # A copy: the next epoch changes the vector in place.
        weights = self.weights.to(losses, copy=True)
        return BalancedLosses(weights * losses, weights)

    def _use(self, means: Tensor) -> None:
        self.older.copy_(self.previous)
        self.previous.copy_(torch.where(means.isfinite(), means, self.older))
        ratio = self.previous / self.older
        known = (self.older > EPS) & ratio.isfinite()
        ratio = ratio.where(known, 1)
        share = ratio / self.temperature
        share = share.where(means.isfinite(), NO_SHARE).softmax(0)
        weights = means.isfinite().sum() * share
        self.weights.copy_(weights.where(means.isfinite(), self.weights))


@MODELS.register_module()
class STCH(_EpochMeans):
    """Smooth Tchebycheff: a smooth maximum of the logarithms of the losses.

    Lin et al., "Smooth Tchebycheff Scalarization for Multi-Objective
    Optimization", ICML 2024: ``mu K log sum exp(log(L / n) / mu)``. During
    the warm-up the objective is the sum of ``log L``; ``n`` are the mean
    losses of its last epoch, over all ranks. 1e-8 is added to each loss.

    Args:
        tasks: Names of the K tasks.
        mu: Smoothness, positive; the smaller, the closer to the maximum.
        warmup: Epochs, or intervals, of warm-up, at least one. LibMTL's
            ``STCH_warmup_epoch=4``, counted from 0, is 5 here.
        interval: Iterations instead of an epoch.

    Raises:
        ValueError: If ``mu``, ``warmup`` or ``interval`` is not positive; at
            the end of the warm-up, if a task had no positive finite loss.
    """

    _state = (*_EpochMeans._state, 'nadir')

    def __init__(
        self,
        tasks: Sequence[str],
        mu: float = 1.0,
        warmup: int = 5,
        interval: int | None = None,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(tasks, interval, init_cfg)
        if not mu > 0 or warmup < 1:
            raise ValueError(
                f'mu and warmup must be positive, got {mu} and {warmup}'
            )
        self.mu, self.warmup = mu, warmup
        self._vector('nadir', 1.0)

    def balance(self, losses: Tensor, mean: Tensor) -> BalancedLosses:
        """The derivative of the smooth maximum is the weight."""
        mean, present = mean + EPS, self.present
        if self.num_epochs < self.warmup:
            value = (mean.log() * present).sum()
            return around_mean(losses, mean, 1 / mean, value, present)
        scaled = (mean / self.nadir).log() / self.mu
        scaled, count = scaled.where(present, NO_SHARE), present.sum()
        value = self.mu * count * scaled.logsumexp(0)
        weights = count * scaled.softmax(0) / mean
        return around_mean(losses, mean, weights, value, present)

    def _use(self, means: Tensor) -> None:
        if self.num_epochs != self.warmup - 1:
            return
        for task, mean in zip(self.tasks, means.tolist()):
            if not mean > 0:
                raise ValueError(
                    f'STCH divides by the mean loss of {task!r} in the last '
                    f'epoch of the warm-up, which is {mean}; check that the '
                    'task has valid labels, or increase warmup'
                )
        self.nadir.copy_(means)


@MODELS.register_module()
class FAMO(LossBalancer):
    """Fast Adaptive Multitask Optimization: equal relative progress.

    Liu et al., NeurIPS 2023: ``c sum z log L`` with ``z = softmax(w)`` and
    ``c = 1 / sum(z / L)``, a constant; the weights add up to 1. After a step
    of the optimizer the losses of the same batch are computed again, in one
    more forward without graph, and Adam moves ``w`` towards the tasks whose
    logarithm fell least. With accumulation this is the last batch of a
    window; where the optimizer skips a step, as at an overflow of mixed
    precision, ``w`` stays.

    1e-8 is added to each loss. A loss that is not finite counts as one that
    did not change; of a task without a valid label ``w`` stays.

    Args:
        tasks: Names of the K tasks.
        lr: Learning rate of ``w``.
        weight_decay: L2 penalty of ``w``. 1e-3 is that of the paper, the
            authors' code has 1e-5.

    Raises:
        ValueError: If ``lr`` or ``weight_decay`` is negative.
    """

    needs_hook = uses_mean = needs_losses_after_step = True
    _state = ('logits', 'first_moment', 'second_moment', 'num_updates')

    def __init__(
        self,
        tasks: Sequence[str],
        lr: float = 0.025,
        weight_decay: float = 1e-3,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(tasks, init_cfg)
        if lr < 0 or weight_decay < 0:
            raise ValueError(
                'lr and weight_decay must not be negative, got '
                f'{lr} and {weight_decay}'
            )
        self.lr, self.weight_decay, self.num_updates = lr, weight_decay, 0
        # No parameter: DDP would wait for its gradient.
        for name in ('logits', 'first_moment', 'second_moment'):
            self._vector(name, 0.0)

    def balance(self, losses: Tensor, mean: Tensor) -> BalancedLosses:
        """The derivative, with ``c`` as a constant, is the weight."""
        mean = mean + EPS
        share = self._share()
        scale = 1 / (share / mean).sum()
        value = scale * (share * mean.log()).sum()
        weights = scale * share / mean
        return around_mean(losses, mean, weights, value, self.present)

    def _share(self) -> Tensor:
        return self.logits.where(self.present, NO_SHARE).softmax(0)

    def update(self, before: Tensor, after: Tensor) -> None:
        """A step of Adam on the logits of the tasks that are present."""
        progress = ((before + EPS) / (after + EPS)).log()
        progress = progress.where(progress.isfinite(), 0).to(self.logits)
        share = self._share()
        grad = share * (progress - (share * progress).sum())
        grad = grad + self.weight_decay * self.logits
        self.num_updates += 1
        state = self.first_moment, self.second_moment, self.logits
        kept = [vector.clone() for vector in state]
        self.first_moment.lerp_(grad, 0.1)
        self.second_moment.lerp_(grad.square(), 0.001)
        mean = self.first_moment / (1 - 0.9**self.num_updates)
        variance = self.second_moment / (1 - 0.999**self.num_updates)
        self.logits -= self.lr * mean / (variance.sqrt() + 1e-8)
        for vector, before in zip(state, kept):
            vector.copy_(vector.where(self.present, before))
