"""Gradient surgery: one direction from the gradients of several tasks.

The gradients of the tasks are averaged over the ranks before the aggregator
sees them, at the end of a window of accumulation: the result is that of one
big batch in one process. (The aggregate of averages is not the average of
aggregates, and neither are their Gramians.)
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ...registry import OPTIM_WRAPPERS
from ..distributed import unwrap_model
from .aggregators import (
    TaskGradients,
    build_aggregator,
    get_state,
    layout_of,
    of_tasks,
    set_state,
)
from .cpu_amp import CPU_VERSIONS, CpuAmpOptimWrapper


class _GradientSurgery:
    """The part that does not depend on the kind of mixed precision.

    See :class:`GradientSurgeryOptimWrapper`.
    """

    def __init__(
        self,
        aggregator: Any,
        seed: int = 0,
        weigh_heads: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._parameters = [
            parameter
            for group in self.optimizer.param_groups
            for parameter in group['params']
        ]
        self._aggregator_cfg = aggregator
        self.aggregator = build_aggregator(aggregator, self._parameters[0])
        self._built = get_state(self.aggregator)
        # Of the tasks with a truth, where not all have one; with the state
        # that each was built with.
        self._partial: dict[tuple[int, ...], tuple[nn.Module, dict]] = {}
        if weigh_heads and not hasattr(self.aggregator, 'weighting'):
            raise ValueError(
                'weigh_heads needs an aggregator that gives each task a '
                f'weight, such as NashMTL or FairGrad, got {self.aggregator}; '
                'leave weigh_heads out'
            )
        self.weigh_heads = weigh_heads
        self.seed, self._num_updates = seed, 0
        self._ddp: DistributedDataParallel | None = None
        self._known: set[int] = set()
        # Numbers of the parameters that belong to no task, and get the sum.
        self._summed: set[int] = set()
        self._gradients: TaskGradients | None = None
        # Of a window that was open when a checkpoint was written.
        self._restored: dict[tuple[int, int], Tensor] = {}

    # Forward ---------------------------------------------------------------

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Forward pass of a training step, without DDP's reduction.

        Raises:
            TypeError: If the model cannot give the losses of its tasks, or
                its wrapper is none for DDP.
            ValueError: If the wrapper has ``static_graph`` or
                ``detect_anomalous_params``.
        """
        if id(model) not in self._known:
            self._check(model)
        with ExitStack() as stack:
            stack.enter_context(super().optim_context(model))
            if model is self._ddp:
                stack.enter_context(model.no_sync())
                # DDP sends buffers at the forward after a reduction of its
                # own, of which there is none: at the first one of a window.
                model.require_forward_param_sync = self._gradients is None
            yield

    def _check(self, model: nn.Module) -> None:
        name, inner = type(self).__name__, unwrap_model(model)
        is_ddp = isinstance(model, DistributedDataParallel)
        if is_model_wrapper(model) and not is_ddp:
            raise TypeError(
                f'{name} needs whole gradients in each process, got a model '
                f'in {type(model).__name__}; use '
                "model_wrapper_cfg=dict(type='mmext.DistributedDataParallel')"
                ', or balance the losses (model.balancer) in place of the '
                'gradients'
            )
        if not hasattr(inner, 'separate_losses'):
            raise TypeError(
                f'{name} needs a model whose parse_losses returns a tuple of '
                'the losses of its tasks where its attribute '
                'separate_losses is True, as mmext.MultiTaskModel, got '
                f'{type(inner).__name__}, which has no such attribute'
            )
        for option in ('static_graph', 'detect_anomalous_params'):
            if getattr(model, option, False):
                raise ValueError(
                    f'model_wrapper_cfg.{option} must be False with {name}, '
                    'which runs a backward for each task, and has DDP reduce '
                    'none of them'
                )
        if getattr(model, 'find_unused_parameters', False):
            print_log(
                f'find_unused_parameters has no effect with {name}: it finds '
                'the parameters that a task does not reach by itself',
                'current',
            )
        inner.separate_losses = True
        balancer = getattr(inner, 'balancer', None)
        if isinstance(balancer, nn.Module):
            # A vector of one weight for each task, which all tasks reach.
            own = {id(parameter) for parameter in balancer.parameters()}
            self._summed = {
                index
                for index, parameter in enumerate(self._parameters)
                if id(parameter) in own
            }
        # A hook may run the model without its wrapper, too.
        self._known.add(id(model))
        if is_ddp:
            self._ddp = model

    # Backward --------------------------------------------------------------

    def scale_loss(self, loss: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Divide the losses by the length of the window.

        Raises:
            TypeError: If they are no tuple or list of scalars.
        """
        if not isinstance(loss, tuple | list) or any(
            not isinstance(value, Tensor) or value.dim() for value in loss
        ):
            got = type(loss).__name__
            if isinstance(loss, Tensor):
                got = f'a tensor of shape {tuple(loss.shape)}'
            raise TypeError(
                'loss must be a tuple of scalars, one for each task, got '
                f'{got}; let parse_losses return it where separate_losses is '
                'True. (The backward of an entry of a stacked vector goes '
                'through all tasks.)'
            )
        return tuple(super(_GradientSurgery, self).scale_loss(v) for v in loss)

    def backward(self, loss: Sequence[Tensor], **kwargs: Any) -> None:
        """Add the gradients of each task to those of the window.

        Args:
            loss: K scalars.
            **kwargs: Of ``torch.autograd.grad``.
        """
        scaler = getattr(self, 'loss_scaler', None)
        if scaler is not None:
            loss = scaler.scale(loss)
        numbers = [
            index
            for index, parameter in enumerate(self._parameters)
            if parameter.requires_grad
        ]
        inputs = [self._parameters[index] for index in numbers]
        window = self._open(loss)
        with_graph = [k for k, value in enumerate(loss) if value.requires_grad]
        for task in with_graph:
            # Of the last one the graph goes while it is walked.
            gradients = torch.autograd.grad(
                loss[task],
                inputs,
                allow_unused=True,
                **{'retain_graph': task != with_graph[-1], **kwargs},
            )
            for index, gradient in zip(numbers, gradients):
                if gradient is not None:
                    key = 0 if index in self._summed else task
                    window.add(key, index, gradient)
            del gradients, gradient
        self._inner_count += 1

    def _open(self, losses: Sequence[Tensor]) -> TaskGradients:
        """The gradients of this window; begins one if there is none."""
        if self._gradients is None:
            self._gradients = TaskGradients(self._parameters, len(losses))
            for key, value in self._restored.items():
                self._gradients.add(*key, value)
            self._restored = {}
        if self._gradients.num_tasks != len(losses):
            raise ValueError(
                'all batches must have the same tasks, got '
                f'{len(losses)} losses after {self._gradients.num_tasks}'
            )
        return self._gradients

    def step(self, **kwargs: Any) -> None:
        """Combine the gradients of the tasks, and step the optimizer."""
        if self._gradients is not None:
            self._combine()
        super().step(**kwargs)

    def zero_grad(self, **kwargs: Any) -> None:
        """Forget all gradients, those of the tasks included."""
        self._gradients, self._restored = None, {}
        super().zero_grad(**kwargs)

    def _combine(self) -> None:
        gradients, self._gradients = self._gradients, None
        if self._ddp is not None and dist.is_initialized():
            if hasattr(self._ddp, 'finish_backward'):
                self._ddp.finish_backward()
            gradients.average(self._ddp.process_group)
        shared, owners = layout_of(set(gradients.parts))
        weights = dict.fromkeys(range(gradients.num_tasks), 1.0)
        scaler = getattr(self, 'loss_scaler', None)
        factor = 1.0 if scaler is None else scaler.get_scale()
        combined = None
        # Else the scaler skips this step; without one NaN shows, as ever.
        if shared and gradients.is_finite():
            with self._seeded():
                combined = self._aggregate(gradients, shared, factor, weights)
        self._num_updates += 1
        sizes = [self._parameters[index].numel() for index in shared]
        parts = iter(combined.split(sizes) if combined is not None else ())
        for index in shared:
            parameter, part = self._parameters[index], next(parts, None)
            if part is None:
                _add(parameter, gradients.combined(index, weights))
            else:
                _add(parameter, part.view(parameter.shape) * factor)
        for index, task in owners.items():
            own = {task: weights[task] if self.weigh_heads else 1.0}
            _add(self._parameters[index], gradients.combined(index, own))

    def _aggregate(
        self,
        gradients: TaskGradients,
        shared: Sequence[int],
        factor: float,
        weights: dict[int, float],
    ) -> Tensor | None:
        """Put in the weights of the tasks; or else give the combination.

        A task without a valid label has a gradient of 0, which changes what
        many aggregators make of the others: it is left out. The aggregator
        gets the gradients divided by ``factor``.
        """
        count = gradients.num_tasks
        tasks = [k for k in range(count) if gradients.reaches(k, shared)]
        aggregator = self._aggregator_of(tasks, count)
        if aggregator is None:
            return None
        # Most of TorchJD's take no more than the products of the gradients.
        weighting = getattr(aggregator, 'gramian_weighting', None)
        try:
            if weighting is not None:
                gramian = gradients.gramian(tasks, shared, factor)
                result, norms = weighting(gramian), gramian.diag().sqrt()
                weights.update(zip(tasks, result.tolist()))
            else:
                rows = gradients.matrix(tasks, shared).div_(factor)
                norms = rows.norm(dim=1)
                if self.weigh_heads:
                    result = aggregator.weighting(rows)
                    weights.update(zip(tasks, result.tolist()))
                    result = result @ rows
                else:
                    result = aggregator(rows)
        except ValueError as error:
            raise ValueError(
                f'{aggregator} cannot combine these gradients: {error}. '
                f'{len(tasks)} of {count} tasks have valid labels in the '
                'window, or reach what is shared; use larger batches, or '
                'another aggregator'
            ) from error
        if not result.sum().isfinite():
            raise FloatingPointError(
                f'{self.aggregator} gives a direction that is not finite, of '
                f'gradients with the norms {norms.tolist()}'
            )
        return result if weighting is None else None

    def _aggregator_of(
        self, tasks: Sequence[int], count: int
    ) -> nn.Module | None:
        """For some of ``count`` tasks; None where one alone is to be kept."""
        if len(tasks) == count:
            return self.aggregator
        is_fixed = 'Constant' in str(self._aggregator_cfg)
        if not tasks or (len(tasks) == 1 and not is_fixed):
            return None
        key = (*tasks, count)
        if key not in self._partial:
            cfg = of_tasks(self._aggregator_cfg, tasks, count)
            built = build_aggregator(cfg, self._parameters[0])
            self._partial[key] = built, get_state(built)
        return self._partial[key][0]

    @contextmanager
    def _seeded(self) -> Iterator[None]:
        """Random numbers of this update, the same on all ranks."""
        seed = np.random.SeedSequence((self.seed, self._num_updates))
        seed = int(seed.generate_state(1)[0])
        device = self._parameters[0].device
        devices = [device] if device.type == 'cuda' else []
        with torch.random.fork_rng(devices=devices):
            torch.default_generator.manual_seed(seed)
            if devices:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            yield

    # Checkpoints -----------------------------------------------------------

    def task_gradients(self) -> dict[tuple[int, int], Tensor]:
        """Those of an open window, of this rank, by task and parameter.

        Parameters are numbered as in the state of the optimizer.
        """
        if self._gradients is None:
            return dict(self._restored)
        return dict(sorted(self._gradients.parts.items()))

    def add_task_gradient(
        self, task: int, parameter: int, gradient: Tensor
    ) -> None:
        """Restore one of :meth:`task_gradients`."""
        self._restored[task, parameter] = gradient

    def state_dict(self) -> dict[str, Any]:
        """State of the optimizer, and of the aggregator."""
        state = super().state_dict()
        state['gradient_surgery'] = {
            'num_updates': self._num_updates,
            'aggregator': get_state(self.aggregator, self._built),
            'partial': {
                key: get_state(*partial)
                for key, partial in self._partial.items()
            },
        }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` gave.

        Of a training without surgery, or with another aggregator, the
        aggregator starts from the beginning.
        """
        state_dict = dict(state_dict)
        own = state_dict.pop('gradient_surgery', None)
        super().load_state_dict(state_dict)
        if own is None:
            return
        self._num_updates = own['num_updates']
        device = self._parameters[0].device
        if not set_state(self.aggregator, own['aggregator'], device):
            print_log(
                f'the state of {own["aggregator"]["kind"]} in the checkpoint '
                f'is not used: {self.aggregator} starts from the beginning',
                'current',
                level=logging.WARNING,
            )
            return
        for (*tasks, count), state in own.get('partial', {}).items():
            aggregator = self._aggregator_of(tasks, count)
            set_state(aggregator, state, device)


def _add(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Add to the ``grad`` of a parameter."""
    gradient = gradient.to(parameter.dtype)
    if parameter.grad is not None:
        gradient = parameter.grad + gradient
    parameter.grad = gradient


@OPTIM_WRAPPERS.register_module()
class GradientSurgeryOptimWrapper(_GradientSurgery, OptimWrapper):
    """Combine the gradients of several tasks by an aggregator of TorchJD.

    ``optim_wrapper=dict(type='mmext.GradientSurgeryOptimWrapper',
    aggregator='PCGrad', optimizer=...)``. Each task has a backward of its
    own. What several tasks reach is shared, and gets the combination;
    parameters that one task reaches get its gradient, those of the balancer
    the sum, those that none reaches get none. This is found from the
    gradients themselves, in each window and over all ranks, and not from
    names. The losses are those that the balancer has weighted.

    A task whose gradient of all that is shared is 0, as without a valid label
    in the window, is left out. The others have an aggregator of their own
    then, built from the same config, with its own state; one task alone is
    not changed. Gradients that are not finite do not get to the aggregator:
    the step is one with their plain sum, which a loss scaler skips.

    ``docs/multi_task.md`` has a table of DDP, accumulation, resume and memory.

    Args:
        aggregator: See :func:`~mmext.engine.optim.aggregators.\
build_aggregator`: ``'PCGrad'``, ``dict(type='CAGrad', c=0.5)``.
        seed: Of the random numbers of the aggregator.
        weigh_heads: Whether the weight that the aggregator gives a task is
            also that of the gradient of what only this task reaches, as in
            the code of the papers of Nash-MTL and FairGrad. By default it
            is 1, as in TorchJD.
        **kwargs: ``optimizer``, ``accumulative_counts`` and ``clip_grad`` of
            MMEngine's ``OptimWrapper``; what is clipped is the result.

    Raises:
        ImportError: If TorchJD, or what it needs for this aggregator, is
            missing.
        TypeError: In a step, if the model does not give a loss for each task.
        ValueError: If there is no such aggregator, or it has no weights for
            ``weigh_heads``; in a step, if the wrapper of the model has
            ``static_graph``.
        FloatingPointError: In a step, if the aggregator makes something that
            is not finite from gradients that are.
    """


@OPTIM_WRAPPERS.register_module()
class AmpGradientSurgeryOptimWrapper(_GradientSurgery, AmpOptimWrapper):
    """:class:`GradientSurgeryOptimWrapper` with mixed precision.

    Takes the arguments of both. The matrix is float32, and divided by the
    scale of the loss before the aggregator gets it. By
    :class:`~mmext.engine.PortableRunner` it works on a CPU, too, in bfloat16.
    """


class CpuAmpGradientSurgeryOptimWrapper(_GradientSurgery, CpuAmpOptimWrapper):
    """:class:`GradientSurgeryOptimWrapper` in bfloat16 autocast, on a CPU."""


CPU_VERSIONS['AmpGradientSurgeryOptimWrapper'] = (
    CpuAmpGradientSurgeryOptimWrapper
)
