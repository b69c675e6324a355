"""Weights of the losses of several tasks.

A balancer runs inside ``forward(mode='loss')`` of the model, on the raw
losses of the K tasks, so that its own parameters, if it has any, are reached
from the outputs of the forward, as DDP's search for unused parameters needs.

What a balancer remembers from step to step is the same on all ranks. It is in
no ``state_dict``: :class:`mmext.LossBalancerHook` keeps it in the message hub,
so that ``resume`` restores it and ``load_from`` begins anew.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.dist import all_reduce
from mmengine.logging import MessageHub, print_log
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...registry import MODELS

__all__ = [
    'DWA',
    'FAMO',
    'IMTLL',
    'STCH',
    'BalancedLosses',
    'EqualWeights',
    'FixedWeights',
    'GeometricMean',
    'LossBalancer',
    'RandomWeights',
    'UncertaintyWeights',
]

# Added to a loss before a logarithm or a division: a batch without any valid
# truth has a loss of zero.
_EPS = 1e-8


class BalancedLosses(NamedTuple):
    """What a balancer makes of K losses.

    Attributes:
        terms: ``(K,)``, with graph; their sum is the objective.
        weights: ``(K,)``, without graph: derivative of the objective by each
            loss.
    """

    terms: Tensor
    weights: Tensor


class LossBalancer(BaseModule):
    """Base of all balancers: K losses to K terms of one objective.

    An objective that is not linear in the losses is one of the mean losses
    over all ranks, as for one big batch: K numbers are averaged in the
    forward of a training step, and the terms are linear around them.

    Args:
        tasks: Names of the K tasks, in the order of the losses.
        init_cfg: As of any ``BaseModule``.

    Raises:
        ValueError: If there is no task, or two have the same name; in
            ``forward``, if there is not one loss per task.
    """

    needs_hook: bool = False
    """Whether it has something to remember, or to do between steps."""
    uses_mean: bool = False
    """Whether its weights follow from the losses of all ranks."""
    needs_losses_after_step: bool = False
    """Whether it is told the losses of the same batch after the step."""
    interval: int | None = None
    """Iterations in place of an epoch, None for epochs."""
    uses_epochs: bool = False
    """Whether :meth:`end_epoch` does anything."""

    # Names of attributes to restore on resume: buffers and numbers.
    _state: tuple[str, ...] = ()

    def __init__(self, tasks: Sequence[str], init_cfg: Any = None) -> None:
        super().__init__(init_cfg)
        self.tasks = tuple(tasks)
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise ValueError(
                'tasks must be names, at least one and none twice, got '
                f'{list(tasks)}'
            )
        self.hooked = False
        self.last_losses: Tensor | None = None
        """``(K,)`` raw losses of the last forward; with :attr:`uses_mean`, in
        a training step, their mean over ranks."""

    def forward(self, losses: Tensor) -> BalancedLosses:
        """Weight the losses of one batch.

        Args:
            losses: ``(K,)``, raw and not scaled, with graph, of this rank;
                computed with in float32 at least.
        """
        if losses.shape != (len(self.tasks),):
            raise ValueError(
                f'losses must have the shape ({len(self.tasks)},), one for '
                f'each of the tasks {", ".join(self.tasks)}, got '
                f'{tuple(losses.shape)}'
            )
        losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
        mean = losses.detach().clone()
        if self.training and torch.is_grad_enabled():
            self._ask_for_hook()
            if self.uses_mean:
                all_reduce(mean, 'mean')
        self.last_losses = mean
        terms, weights = self.balance(losses, mean)
        return BalancedLosses(terms, weights.detach())

    def balance(self, losses: Tensor, mean: Tensor) -> BalancedLosses:
        """Terms and weights.

        Args:
            losses: ``(K,)`` of this rank, with graph.
            mean: ``(K,)``, without: over ranks with :attr:`uses_mean`.
        """
        raise NotImplementedError

    def after_step(self) -> None:
        """An iteration is over; called by the hook."""

    def update(self, before: Tensor, after: Tensor) -> None:
        """Learn from losses ``(K,)`` before and after a step of the optimizer.

        Called by the hook if :attr:`needs_losses_after_step`; both are means
        over ranks.
        """

    def end_epoch(self) -> None:
        """An epoch, or an interval, is over; called by the hook."""

    def get_state(self) -> dict[str, Any]:
        """What to restore on resume: names, numbers and tensors."""
        return {
            'kind': type(self).__name__,
            'tasks': list(self.tasks),
            **{name: getattr(self, name) for name in self._state},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`get_state` gave.

        That of another balancer is of no use here: a warning says so.

        Raises:
            ValueError: If it is of other tasks.
        """
        if state['kind'] != type(self).__name__:
            print_log(
                f'the checkpoint has the state of {state["kind"]}; '
                f'{type(self).__name__} starts from the beginning',
                'current',
                level=logging.WARNING,
            )
            return
        if tuple(state['tasks']) != self.tasks:
            raise ValueError(
                f'the state of {type(self).__name__} in the checkpoint is '
                f'of the tasks {", ".join(state["tasks"])}, and the model '
                f'has {", ".join(self.tasks)}; start with load_from in '
                'place of resume'
            )
        for name in self._state:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                value.copy_(state[name])
            else:
                setattr(self, name, type(value)(state[name]))

    def _ask_for_hook(self) -> None:
        """Say once, in a training by a runner, that the hook is missing."""
        if not self.needs_hook or self.hooked:
            return
        # Set by a hook that every runner has, before its first iteration.
        if 'iter' in MessageHub.get_current_instance().runtime_info:
            self.hooked = True
            print_log(
                f'{type(self).__name__} needs mmext.LossBalancerHook, which '
                'this runner does not have: it learns nothing between steps '
                'and is not restored on resume. Add dict(type='
                "'mmext.LossBalancerHook') to custom_hooks, or use "
                "runner_type='mmext.PortableRunner'",
                'current',
                level=logging.WARNING,
            )

    def _vector(self, name: str, value: float) -> None:
        """A buffer ``(K,)`` that moves with the model and is not saved."""
        self.register_buffer(
            name, torch.full((len(self.tasks),), value), persistent=False
        )


def _around(
    losses: Tensor, mean: Tensor, weights: Tensor, value: Tensor
) -> BalancedLosses:
    """Terms of an objective with this value and gradient at ``mean``.

    What their sum lacks to the value is a constant, shared equally.
    """
    rest = (value - (weights * mean).sum()) / len(mean)
    return BalancedLosses(weights * losses + rest, weights)


@MODELS.register_module()
class EqualWeights(LossBalancer):
    """The sum of all losses.

    Args:
        tasks: Names of the K tasks.
    """

    def balance(self, losses: Tensor, mean: Tensor) -> BalancedLosses:
        """All weights are 1."""
        return BalancedLosses(losses * 1, torch.ones_like(mean))


@MODELS.register_module()
class FixedWeights(LossBalancer):
    """A weighted sum, with weights that are tuned by hand.

    One weight is one option of the command line:
    ``--cfg-options model.balancer.weights.depth=2``.

    Args:
        tasks: Names of the K tasks.
        weights: Weight by name of the task, 1 for those that are not named.

    Raises:
        ValueError: If a weight is of no task, negative, or not finite.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        weights: Mapping[str, float] | None = None,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(tasks, init_cfg)
        weights = dict(weights or {})
        for task, weight in weights.items():
            if task not in self.tasks:
                raise ValueError(
                    f'weights.{task} is of no task; the tasks are '
                    f'{", ".join(self.tasks)}'
                )
            if not (math.isfinite(weight) and weight >= 0):
                raise ValueError(
                    f'weights.{task} must be finite and not negative, got '
                    f'{weight}'
                )
        self._vector('weights', 1.0)
        self.weights.copy_(
            torch.tensor([float(weights.get(t, 1.0)) for t in self.tasks])
        )

    def balance(self, losses: Tensor, mean: Tensor) -> BalancedLosses:
        """The weights of the config."""
        weights = self.weights.to(losses)
        return BalancedLosses(weights * losses, weights)


@MODELS.register_module()
class UncertaintyWeights(LossBalancer):
    """Weights that are trained: ``exp(-s) L / 2 + s / 2``.

    Kendall et al., "Multi-Task Learning Using Uncertainty to Weigh Losses for
    Scene Geometry and Semantics", CVPR 2018. ``s``, one log-variance per
    task, is the parameter ``log_variance``; a weight decay would pull it
    towards 0 (``paramwise_cfg=dict(custom_keys={'balancer':
    dict(decay_mult=0)})``).

    Args:
        tasks: Names of the K tasks.
        initial: First value of ``s``. TorchJD begins with 0, weights of 1/2,
            LibMTL with -0.5.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        initial: float = 0.0,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(tasks, init_cfg)
        self.log_variance = nn.Parameter(
            torch.full((len(self.tasks),), float(initial))
        )

    def balance(self, losses: Tensor, mean: Tensor) -> BalancedLosses:
        """Half the precision is the weight."""
        weights = (-self.log_variance).exp() / 2
        return BalancedLosses(
            weights * losses + self.log_variance / 2, weights
        )


@MODELS.register_module()
class IMTLL(LossBalancer):
    """Weights that are trained: ``exp(s) L - s`` (IMTL-L).

    Liu et al., "Towards Impartial Multi-Task Learning", ICLR 2021. ``s``
    begins with 0. Twice :class:`UncertaintyWeights`, with ``s`` negated.

    Args:
        tasks: Names of the K tasks.
    """

    def __init__(self, tasks: Sequence[str], init_cfg: Any = None) -> None:
        super().__init__(tasks, init_cfg)
        self.log_scale = nn.Parameter(torch.zeros(len(self.tasks)))

    def balance(self, losses: Tensor, mean: Tensor) -> BalancedLosses:
        """The scale is the weight."""
        weights = self.log_scale.exp()
        return BalancedLosses(weights * losses - self.log_scale, weights)


@MODELS.register_module()
class RandomWeights(LossBalancer):
    """Weights that are drawn in each step, the softmax of normal numbers.

    Lin et al., "Reasonable Effectiveness of Random Weighting", TMLR 2022.
    They add up to 1, are the same on all ranks, follow from the seed and the
    number of the step, and leave the global generators alone.

    Args:
        tasks: Names of the K tasks.
        seed: Of the weights.
    """

    needs_hook = True
    _state = ('num_steps',)

    def __init__(
        self, tasks: Sequence[str], seed: int = 0, init_cfg: Any = None
    ) -> None:
        super().__init__(tasks, init_cfg)
        self.seed, self.num_steps = seed, 0

    def balance(self, losses: Tensor, mean: Tensor) -> BalancedLosses:
        """Draw weights; a training step moves on to the next ones."""
        sequence = np.random.SeedSequence((self.seed, self.num_steps))
        generator = torch.Generator()
        generator.manual_seed(int(sequence.generate_state(1)[0]))
        drawn = torch.randn(len(self.tasks), generator=generator)
        weights = drawn.softmax(0).to(losses)
        if self.training and torch.is_grad_enabled():
            self.num_steps += 1
        return BalancedLosses(weights * losses, weights)


@MODELS.register_module()
class GeometricMean(LossBalancer):
    """The geometric mean of the losses (GLS).

    Chennupati et al., "MultiNet++", CVPR workshops 2019. The weight of a loss
    is the mean, divided by K times the loss. 1e-8 is added to each loss, so
    that one of zero leaves all finite; it takes nearly all of the others'
    weight for that step.

    Args:
        tasks: Names of the K tasks.

    Raises:
        ValueError: In ``forward``, if a loss is negative.
    """

    uses_mean = True

    def balance(self, losses: Tensor, mean: Tensor) -> BalancedLosses:
        """The derivative of the mean is the weight."""
        if (mean < 0).any():
            raise ValueError(
                'GeometricMean needs losses that are not negative, got '
                f'{dict(zip(self.tasks, mean.tolist()))}'
            )
        mean = mean + _EPS
        value = mean.log().mean().exp()
        return _around(losses, mean, value / (len(mean) * mean), value)


class _EpochMeans(LossBalancer):
    """Averages the raw losses over ranks and over epochs, or intervals.

    A loss that is not finite does not count.
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
        finite = self.last_losses.isfinite()
        self.sums += self.last_losses.where(finite, 0)
        self.counts += finite

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

    Losses that are not finite are left out of the mean; a task without any
    finite loss in an epoch keeps its last mean. Where the mean of the epoch
    before the last is not greater than 1e-8, or not known, ``r`` is 1.

    Args:
        tasks: Names of the K tasks.
        temperature: ``T``, positive; the greater, the more equal the weights.
        interval: Iterations in place of an epoch, which
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
        known = (self.older > _EPS) & ratio.isfinite()
        ratio = ratio.where(known, 1)
        self.weights.copy_(
            len(self.tasks) * (ratio / self.temperature).softmax(0)
        )


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
        interval: Iterations in place of an epoch.

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
        mean = mean + _EPS
        if self.num_epochs < self.warmup:
            return _around(losses, mean, 1 / mean, mean.log().sum())
        scaled = (mean / self.nadir).log() / self.mu
        count = len(mean)
        value = self.mu * count * scaled.logsumexp(0)
        return _around(losses, mean, count * scaled.softmax(0) / mean, value)

    def _use(self, means: Tensor) -> None:
        if self.num_epochs != self.warmup - 1:
            return
        for task, mean in zip(self.tasks, means.tolist()):
            if not mean > 0:
                raise ValueError(
                    f'STCH divides by the mean loss of {task!r} in the last '
                    f'epoch of the warm-up, which is {mean}; look for a task '
                    'without valid truth, or raise warmup'
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
    did not change.

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
        mean = mean + _EPS
        share = self.logits.softmax(0)
        scale = 1 / (share / mean).sum()
        value = scale * (share * mean.log()).sum()
        return _around(losses, mean, scale * share / mean, value)

    def update(self, before: Tensor, after: Tensor) -> None:
        """A step of Adam on the logits."""
        progress = ((before + _EPS) / (after + _EPS)).log()
        progress = progress.where(progress.isfinite(), 0).to(self.logits)
        share = self.logits.softmax(0)
        grad = share * (progress - (share * progress).sum())
        grad = grad + self.weight_decay * self.logits
        self.num_updates += 1
        self.first_moment.lerp_(grad, 0.1)
        self.second_moment.lerp_(grad.square(), 0.001)
        mean = self.first_moment / (1 - 0.9**self.num_updates)
        variance = self.second_moment / (1 - 0.999**self.num_updates)
        self.logits -= self.lr * mean / (variance.sqrt() + 1e-8)
