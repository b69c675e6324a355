"""Weights of the losses of several tasks.

A balancer runs inside ``forward(mode='loss')`` of the model, on the raw
losses of the K tasks, so that its own parameters, if it has any, are reached
from the outputs of the forward, as DDP's search for unused parameters needs.

What a balancer remembers from step to step is the same on all ranks. It is in
no ``state_dict``: :class:`mmext.LossBalancerHook` keeps it in the message hub,
so that ``resume`` restores it and ``load_from`` starts from the beginning.
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

# Added to a loss before a logarithm or a division.
EPS = 1e-8
# Logit of a task that has no share in a softmax.
NO_SHARE = -1e30


class BalancedLosses(NamedTuple):
    """Result of a balancer for K losses.

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
    """Iterations instead of an epoch; None for epochs."""
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
        self.present: Tensor | None = None
        """``(K,)`` bool, which tasks had a valid label in the last forward."""
        self.last_losses: Tensor | None = None
        """``(K,)`` raw losses of the last forward; with :attr:`uses_mean`, in
        a training step, their mean over ranks."""

    def forward(
        self, losses: Tensor, present: Tensor | None = None
    ) -> BalancedLosses:
        """Weight the losses of one batch.

        Args:
            losses: ``(K,)``, raw and not scaled, with graph, of this rank;
                computed with in float32 at least.
            present: ``(K,)`` bool: the tasks with a valid label on any rank,
                by default all. The others get a term and a weight of 0, and
                nothing is learnt from their losses.
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
        if present is None:
            present = torch.ones_like(mean, dtype=torch.bool)
        self.present = present
        terms, weights = self.balance(losses, mean)
        return BalancedLosses(terms * present, weights.detach() * present)

    def balance(self, losses: Tensor, mean: Tensor) -> BalancedLosses:
        """Terms and weights; what is not :attr:`present` is set to 0 later.

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
        """Restore the result of :meth:`get_state`.

        The state of another balancer is ignored, with a warning.

        Raises:
            ValueError: If the state has other tasks.
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
                f'has {", ".join(self.tasks)}; use load_from instead of '
                'resume'
            )
        for name in self._state:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                value.copy_(state[name])
            else:
                setattr(self, name, type(value)(state[name]))

    def _ask_for_hook(self) -> None:
        """Warn once, in a training by a runner, that the hook is missing."""
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


def around_mean(
    losses: Tensor,
    mean: Tensor,
    weights: Tensor,
    value: Tensor,
    present: Tensor,
) -> BalancedLosses:
    """Terms of an objective with this value and gradient at ``mean``.

    What their sum lacks to the value is a constant, shared equally by the
    tasks that are present. All vectors are ``(K,)``, ``value`` is a scalar;
    only ``losses`` has a graph.
    """
    rest = value - (weights * mean * present).sum()
    rest = rest / present.sum().clamp(min=1)
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
        ValueError: If a task is unknown, or a weight negative or not finite.
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
                    f'weights: unknown task {task!r}, tasks are '
                    f'{list(self.tasks)}'
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
        drawn = drawn.to(losses).where(self.present, NO_SHARE)
        weights = drawn.softmax(0)
        if self.training and torch.is_grad_enabled():
            self.num_steps += 1
        return BalancedLosses(weights * losses, weights)


@MODELS.register_module()
class GeometricMean(LossBalancer):
    """The geometric mean of the losses (GLS).

    Chennupati et al., "MultiNet++", CVPR workshops 2019. The weight of a loss
    is the mean, divided by K times the loss; K counts the tasks with a valid
    label. 1e-8 is added to each loss, so that one of zero leaves all finite;
    it takes nearly all of the others' weight for that step.

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
        mean, present = mean + EPS, self.present
        count = present.sum().clamp(min=1)
        value = ((mean.log() * present).sum() / count).exp()
        weights = value / (count * mean)
        return around_mean(losses, mean, weights, value, present)
