"""DDP that names the parameters, the reason and what to do when it fails."""

import inspect
import logging
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.model import (
    MMDistributedDataParallel,
    MMSeparateDistributedDataParallel,
    is_model_wrapper,
)
from mmengine.optim import OptimWrapper
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...checks.ddp import (
    KEEP_DENSE,
    STEP_REMEDY,
    WRAPPERS,
    OpenedOutput,
    SyncSettings,
    bypassed_methods,
    foreign_parameters,
    lazy_tensors,
    open_output,
    trainable_tensors,
    unsendable_tensors,
)
from ...registry import MODEL_WRAPPERS
from .counter import GradientCheck, Lack
from .report import (
    GradientSyncError,
    RankReport,
    format_sync_report,
    is_peer_error,
    peer_failed,
    peer_gone,
)
from .vote import (
    Doubt,
    ReplicaReport,
    StepVote,
    Vote,
    drift_of,
    foreign_lines,
    replica_sums,
)
from .watch import PeerError, current_watch, first_line

# PyTorch has renamed it; by the old name, False leaves buffers different even
# at the start.
_BUFFERS = 'broadcast_buffers'
if 'forward_sync_buffers' in inspect.signature(TorchDDP).parameters:
    _BUFFERS = 'forward_sync_buffers'

# What PyTorch's reducer says, in errors that the user can do something about.
_REDUCER_ERRORS = (
    'Expected to have finished reduction in the prior iteration',
    'Expected to mark a variable ready only once',
    'Your training graph has changed',
    'Expected sparse gradient to be defined',
    'Expected variable to have sparse gradient',
    'Cannot access storage of SparseTensorImpl',
)
# What `join(throw_on_early_termination=True)` raises on all processes.
_NO_MORE_INPUT = 'exhausted inputs'
# Steps of the optimizer before which replicas are compared: the first few,
# and then every so many.
_FIRST_UPDATES = 4
_UPDATE_INTERVAL = 100
# Attributes that a copy gets anew: they belong to the hooks and the process
# groups of this wrapper, or are an error of a step that the copy never did.
_NOT_COPIED = ('_check', '_vote', '_failure', '_opened')


@MODEL_WRAPPERS.register_module()
class DistributedDataParallel(MMDistributedDataParallel):
    """MMEngine's DDP wrapper, with errors that say what to do.

    PyTorch notices a parameter without gradient at the next forward, when
    the optimizer has already used gradients that were not averaged; other
    processes then wait for it, or end with an error of their connection. Here
    every process counts the ready gradients at the end of the backward,
    and all of them vote, before the optimizer steps. If one cannot go on,
    all raise the same error, with the parameters by name, the reason, and
    the lines of the config that help. To find these, the step is run a second
    time by :func:`mmext.checks.ddp.trace_step`.

    A module that is used twice under a reentrant checkpoint may keep
    gradients of a process to itself without any error in PyTorch; here it
    is refused. So is a parameter that became trainable after wrapping.

    Whatever the training does, an optimizer that holds parameters of the
    model does not step with gradients of one process alone: if some were
    added after they had been averaged, as by a second backward of the same
    forward, or nothing was averaged, all processes compare their gradients
    and weights first, and raise the same error if they differ. They also do
    so before the first 4 steps of the optimizer and every 100th, in case
    weights or gradients are changed by hand, or the optimizer has parameters
    that the model does not have, as layers in a list.

    The losses may be in containers of any kind: those that DDP does not
    open, such as subclasses of dict, data samples and other objects, are
    opened here.

    In :meth:`join`, a process that has no more batches votes with the others,
    whose weights may differ from its own: replicas are not compared.

    Args:
        module: The model, on its device.
        find_unused_parameters: Search in every step for parameters that do
            not take part. Needed only if there are any.
        static_graph: Promise that all steps use the same parameters in the
            same way; they may then be unused, or used under reentrant
            checkpoints. ``find_unused_parameters`` has no effect with it.
        gradient_as_bucket_view: Let gradients be views of the buffers that
            are averaged: saves memory of the size of the gradients.
        broadcast_buffers: Send the buffers of rank 0 to all before each
            forward. Off, as MMEngine does where it wraps by default.
        check_gradients: Count and vote in every step, and compare replicas.
            Without, errors are PyTorch's, and some faults have none.
        detect_anomalous_params: As in MMEngine.
        **kwargs: Further arguments of PyTorch's class, such as
            ``bucket_cap_mb``.

    Raises:
        ValueError: If the model has parameters or buffers that have no shape
            yet, or are sparse or quantized.
        GradientSyncError: In ``train_step``, in a backward and in a step of
            an optimizer, if gradients are not averaged.
        PeerError: In ``train_step``, if another process has failed there, is
            gone, does not answer in time, or is in another step.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        gradient_as_bucket_view: bool = False,
        broadcast_buffers: bool = False,
        check_gradients: bool = True,
        detect_anomalous_params: bool = False,
        **kwargs: Any,
    ) -> None:
        # PyTorch 2.13 names it so.
        renamed = kwargs.pop('forward_sync_buffers', None)
        if renamed is not None:
            broadcast_buffers = renamed
        lazy = lazy_tensors(module)
        if lazy:
            raise ValueError(
                'module must have parameters and buffers with a shape, got '
                f'lazy ones: {", ".join(lazy)}; give the number of inputs in '
                'the model (nn.Linear for nn.LazyLinear), or run one batch '
                'through it before it is wrapped'
            )
        unsendable = unsendable_tensors(module)
        if unsendable:
            raise ValueError(
                'module must have dense parameters and buffers, got sparse or '
                'quantized ones, which DDP cannot send to other processes: '
                f'{", ".join(unsendable)}; {KEEP_DENSE}'
            )
        for buffer in module.buffers():
            if 0 in buffer.stride():
                # An expanded one, which DDP could not write to.
                buffer.data = buffer.clone()
        super().__init__(
            module,
            detect_anomalous_params=detect_anomalous_params,
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            gradient_as_bucket_view=gradient_as_bucket_view,
            **{_BUFFERS: broadcast_buffers},
            **kwargs,
        )
        if _BUFFERS == 'broadcast_buffers' and not broadcast_buffers:
            # Those of the first process are sent to all.
            source = dist.get_global_rank(self.process_group, 0)
            for name, buffer in module.named_buffers():
                if name not in self.parameters_to_ignore:
                    dist.broadcast(buffer, source, group=self.process_group)
        self.settings = SyncSettings(find_unused_parameters, static_graph)
        self.check_gradients = check_gradients
        self._bypassed = bypassed_methods(module, DistributedDataParallel)
        self._start_checks(StepVote(self.process_group))

    def _start_checks(self, vote: StepVote) -> None:
        """Register the hooks of a new wrapper, or of a copy of one."""
        self._check = GradientCheck(
            self.module, self.settings, self.parameters_to_ignore
        )
        self._vote = vote
        self._queued = self._voted = False
        self._num_steps = 0
        # A forward whose gradients have not been averaged yet; whether some
        # of them are missing, which a further backward may bring.
        self._awaits = self._is_incomplete = False
        self._may_repeat = self._opens = self._is_last = False
        self._opened: OpenedOutput | None = None
        self._num_updates = 0
        self._failure: Exception | None = None
        if not self.check_gradients:
            return
        # Replicas are checked before any optimizer of the model steps.
        reference = weakref.ref(self)

        def check(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            wrapper = reference()
            if wrapper is not None:
                wrapper._before_update(optimizer)

        handle = register_optimizer_step_pre_hook(check)
        weakref.finalize(self, handle.remove)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {k: v for k, v in state.items() if k not in _NOT_COPIED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # PyTorch copies it, and would not average the first step of a copy.
        self._static_graph_delay_allreduce_enqueued = False
        # Other processes may have no copy: a group would wait for them.
        self._start_checks(StepVote(self.process_group, connect=False))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the model; in training, watch the backward of the result.

        Raises:
            GradientSyncError: If a step before could not be averaged.
            PeerError: If another process failed in a step before.
        """
        if self._failure is not None:
            raise self._failure
        if not (
            self.check_gradients
            and torch.is_grad_enabled()
            and self.require_backward_grad_sync
        ):
            return super().forward(*inputs, **kwargs)
        self._queued = self._voted = self._is_incomplete = False
        self._awaits = self._opens = True
        self._check.begin(self.device.type, inputs, kwargs)
        try:
            outputs = super().forward(*inputs, **kwargs)
            if self._opened is not None:
                outputs = self._opened.close(outputs)
        finally:
            self._opens, self._opened = False, None
        self._check.end_forward(outputs)
        for tensor in trainable_tensors(outputs):
            tensor.register_hook(self._queue_check)
        return outputs

    def _run_ddp_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Give DDP a list of tensors for an output that it cannot open."""
        outputs = super()._run_ddp_forward(*inputs, **kwargs)
        if self._opens and self.settings != SyncSettings():
            self._opened = open_output(outputs)
        return outputs if self._opened is None else self._opened.tensors

    def train_step(
        self, data: Any, optim_wrapper: OptimWrapper
    ) -> dict[str, Tensor]:
        """Forward, backward, and a step of the optimizer.

        Args:
            data: A batch as the data loader gives it.
            optim_wrapper: The optimizer.

        Returns:
            Values for the log.

        Raises:
            GradientSyncError: If the gradients cannot be averaged.
            PeerError: If another process has failed in this step.
            TypeError: If the model has a ``train_step`` of its own, which
                is not called here.
        """
        if self._bypassed:
            raise TypeError(
                f'{type(self.module).__name__} has a method of its own, '
                f'{" and ".join(self._bypassed)}, which trains in one '
                'process and which DDP does not call: '
                f'{type(self).__name__} would train something else; '
                f'{STEP_REMEDY}'
            )
        self._voted = False
        self._num_steps += 1
        current_watch().note('forward')
        self._may_repeat = _has_own_backward(optim_wrapper)
        try:
            logs = super().train_step(data, optim_wrapper)
            self._finish_incomplete()
            return logs
        except (GradientSyncError, PeerError):
            raise
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._may_repeat = False
            self._check.forget_input()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without averaging them.

        Raises:
            RuntimeError: With ``static_graph``, before any step was
                averaged: PyTorch cannot begin like that.
        """
        if self.settings.static_graph and not self._check.num_steps:
            raise RuntimeError(
                'static_graph=True needs a first step whose gradients are '
                'averaged at once, but gradients are accumulated from the '
                'first step on; set optim_wrapper.accumulative_counts to 1, '
                'or static_graph of model_wrapper_cfg to False'
            )
        with super().no_sync():
            yield

    def _match_all_reduce_for_bwd_pass(self) -> None:
        """In ``join``, without a batch: do what a backward of others does."""
        works = [
            self.reducer._run_comm_hook(bucket)
            for bucket in self.reducer._get_zeros_like_grad_buckets()
        ]
        if self.check_gradients:
            # The others vote when they have begun to average, and then wait.
            self._cast(Vote.OK, joined=True)
        for work in works:
            work.wait()

    def _sync_final_model(self, is_last_joiner: bool) -> None:
        """At the end of ``join``: all go on with the same weights."""
        super()._sync_final_model(is_last_joiner)
        self._num_steps = 0

    def _queue_check(self, grad: Tensor) -> None:
        """At the start of the backward: queue a check for its end."""
        # It is queued first, so it comes before the reducer waits for others.
        if not self._queued:
            self._queued = True
            current_watch().note('backward')
            if self._check.absent_tables():
                # The reducer would end this backward, and explain nothing.
                self._remove_autograd_hooks()
            Variable._execution_engine.queue_callback(self._check_step)

    def _check_step(self) -> None:
        """At the end of the backward: vote on whether the step is in order."""
        wrong = self._check.is_wrong()
        self._cast(Vote.GRADIENTS if wrong else Vote.OK)
        if not self._is_incomplete:
            # Without any gradient, nothing was averaged.
            self._awaits = not self._check.has_counted()
            self._check.finish_step(log=self._vote.rank == 0)

    def _finish_incomplete(self) -> None:
        """No further backward comes: what is missing is an error now."""
        if not self._is_incomplete:
            return
        if self._check.lacks() is Lack.ALL and self._check.has_gradients():
            # By hand: replicas are compared.
            self._is_incomplete = False
            return
        self._is_last = True
        try:
            self._check_step()
        finally:
            self._is_last = False

    def _before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Before an optimizer steps: replicas must not drift apart."""
        if self._vote.size == 1 or not dist.is_initialized():
            self._finish_incomplete()
            return
        if not any(
            self._check.knows_any(group['params'])
            for group in optimizer.param_groups
        ):
            return
        if self._failure is not None:
            raise self._failure
        self._finish_incomplete()
        join = self._join_config
        if not join.enable or join.throw_on_early_termination:
            # All processes are here: none has left the batches to others.
            self._check_replicas(optimizer)
        self._check.settle()
        self._awaits = False

    def _check_replicas(self, optimizer: torch.optim.Optimizer) -> None:
        """Compare replicas in some updates, and in those in doubt."""
        doubt = self._doubt()
        count, self._num_updates = self._num_updates, self._num_updates + 1
        if count < _FIRST_UPDATES or count % _UPDATE_INTERVAL == 0:
            foreign = foreign_parameters(self.module, optimizer.param_groups)
            self._compare_replicas(f'update {count + 1}', doubt, foreign)
            if foreign and count == 0 and self._vote.rank == 0:
                text = '\n'.join(foreign_lines(list(foreign)))
                print_log(text, 'current', level=logging.WARNING)
        elif doubt.value and self._cast(Vote.DOUBT) is Vote.DOUBT:
            # Others may have seen none, and learn it by their next vote.
            self._compare_replicas(f'update {count + 1}', doubt)

    def _doubt(self) -> Doubt:
        """Why the gradients may be those of this process alone."""
        if not self._check.has_gradients():
            return Doubt.NONE
        begun = getattr(self, '_static_graph_delay_allreduce_enqueued', True)
        if self.settings.static_graph and not begun:
            return Doubt.NOT_PASSED
        if self._awaits:
            return Doubt.NEVER
        return Doubt.AGAIN if self._check.is_dirty() else Doubt.NONE

    def _compare_replicas(
        self, location: str, doubt: Doubt, foreign: Mapping[str, Tensor] = {}
    ) -> None:
        """Raise on all processes if weights or gradients differ."""
        report = ReplicaReport(
            self._vote.rank,
            location,
            doubt,
            replica_sums(self.module, self.parameters_to_ignore, foreign),
            tuple(foreign),
        )
        drift = drift_of(self._vote.exchange(report))
        if drift:
            self._voted = True
            self._failure = GradientSyncError(drift)
            raise self._failure

    def finish_backward(self) -> None:
        """Agree with the other processes that all have gradients.

        For a step whose backward was without DDP's reduction (under
        :meth:`no_sync`), before these are averaged in another way.

        Raises:
            PeerError: If another one is in another step, has failed, or is
                gone.
        """
        if self.check_gradients:
            self._cast(Vote.OK)

    def finish_data(self) -> None:
        """Agree with the other processes that all are at the end of the data.

        Raises:
            PeerError: If another one is in a step, has failed, or is gone.
        """
        if self.check_gradients:
            self._cast(Vote.OK, at_end=True)

    def _cast(
        self,
        vote: Vote,
        error: str = '',
        *,
        at_end: bool = False,
        joined: bool = False,
    ) -> Vote:
        """Vote once per step, and raise the error that is the result.

        A process that has ``joined`` has no batch, and no step of its own.
        """
        self._voted = vote is not Vote.DOUBT
        self._is_incomplete = False
        step = None if joined else self._num_steps
        try:
            result = self._vote.cast(vote, step, at_end=at_end)
        except PeerError as failure:
            self._failure = failure
            raise
        if result is Vote.DOUBT and vote is not Vote.DOUBT:
            # Another process is in doubt where this one is not.
            location = f'backward {self._check.num_steps + 1}'
            self._compare_replicas(location, Doubt.NONE)
        if result in (Vote.OK, Vote.DOUBT):
            return result
        if result is Vote.GRADIENTS and not self._is_last:
            lacks = Lack.ALL if joined else Lack.OTHER
            if vote is Vote.GRADIENTS and not error:
                lacks = self._check.lacks()
                if lacks is Lack.SOME and not self._may_repeat:
                    lacks = Lack.OTHER
            lacks = max(self._vote.exchange(lacks))
            if joined and lacks is Lack.SOME:
                return self._cast(vote, joined=True)
            if lacks is not Lack.OTHER:
                # A further backward may bring what is missing to all; or it
                # is computed by torch.autograd.grad, and put there by hand.
                self._is_incomplete, self._queued = not joined, False
                self._voted = False
                return result
        if result is Vote.ERROR:
            failed = self._vote.exchange((self._vote.rank, error))
            if vote is not Vote.ERROR:
                self._failure = peer_failed(failed)
                raise self._failure
            return result
        # The reducer is in the middle of a step that will not end.
        self._remove_autograd_hooks()
        report = RankReport(self._vote.rank)
        if not joined:
            report = self._check.report(self._vote.rank, error)
        reports = self._vote.exchange(report)
        self._failure = GradientSyncError(
            format_sync_report(reports, self.settings), tuple(reports)
        )
        raise self._failure

    def _fail(self, error: Exception) -> None:
        """Report an error of this process to the others, or explain it."""
        if self._voted or not self.check_gradients:
            return
        if _NO_MORE_INPUT in str(error):
            # All processes know by join, and this step has not begun.
            self._num_steps -= 1
            return
        text = f'{type(error).__name__}: {error}'
        if is_peer_error(error):
            raise peer_gone(error) from error
        if any(known in str(error) for known in _REDUCER_ERRORS):
            try:
                self._cast(Vote.GRADIENTS, text)
            except GradientSyncError as explained:
                raise explained from error
        if self._vote.size > 1:
            try:
                self._cast(Vote.ERROR, first_line(error))
            except PeerError as other:
                print_log(
                    f'the others could not be informed: {other}',
                    'current',
                    level=logging.ERROR,
                )


WRAPPERS.append(DistributedDataParallel)


def _has_own_backward(optim_wrapper: Any) -> bool:
    """Whether more than one backward may come, as in gradient surgery."""
    kind = type(optim_wrapper)
    methods = (getattr(kind, n, None) for n in ('update_params', 'backward'))
    return any(
        method.__module__.partition('.')[0] not in ('mmengine', 'mmext')
        for method in methods
        if method is not None
    )


def unwrap_model(model: nn.Module) -> nn.Module:
    """The model inside of its wrappers, if it has any."""
    while is_model_wrapper(model):
        model = model.module
    return model


def model_wrapper_config(
    cfg: Mapping[str, Any] | None,
    device: torch.device,
    find_unused_parameters: bool | None = None,
) -> dict[str, Any]:
    """Complete ``model_wrapper_cfg``, without the module.

    MMEngine reads the top-level ``find_unused_parameters`` only when there
    is no ``model_wrapper_cfg``, and leaves ``broadcast_buffers`` at PyTorch's
    True when there is one. Here both hold in either case. ``cfg`` is not
    changed; the type defaults to ``mmext.DistributedDataParallel``.

    Raises:
        KeyError: If the type is not registered.
        ValueError: If both locations set ``find_unused_parameters``, and not
            to the same.
    """
    result = {'type': 'mmext.DistributedDataParallel', **(cfg or {})}
    kind = result['type']
    if not inspect.isclass(kind):
        kind = MODEL_WRAPPERS.root.get(kind)
        if kind is None:
            raise KeyError(
                'model_wrapper_cfg.type must be a registered model wrapper, '
                f'got {result["type"]!r}'
            )
    if not issubclass(kind, TorchDDP):
        return result
    own = result.get('find_unused_parameters')
    if None not in (own, find_unused_parameters) and bool(own) != bool(
        find_unused_parameters
    ):
        raise ValueError(
            'find_unused_parameters must be the same wherever it is set, got '
            f'{find_unused_parameters} at the top level and {own} in '
            'model_wrapper_cfg; set it in one place'
        )
    result.setdefault('broadcast_buffers', False)
    result.setdefault('find_unused_parameters', bool(find_unused_parameters))
    if device.type == 'cpu':
        # Gloo takes the module where it is; an index means a GPU.
        result.pop('device_ids', None)
        result.pop('output_device', None)
    else:
        result.setdefault('device_ids', [device.index])
    return result


def keep_parameter_names(wrapper: nn.Module) -> None:
    """Let checkpoints name parameters as without a wrapper.

    ``MMSeparateDistributedDataParallel`` puts wrappers into the model, whose
    names would get a ``module.`` in the middle: such a checkpoint fits
    neither one process nor MMEngine's own resume. Other wrappers are left
    alone.
    """
    if not isinstance(wrapper, MMSeparateDistributedDataParallel):
        return
    for child in wrapper.module.children():
        if isinstance(child, TorchDDP):
            child._register_state_dict_hook(_without_prefix)
            child._register_load_state_dict_pre_hook(_with_prefix)


def _without_prefix(
    module: nn.Module, state: dict, prefix: str, *_: Any
) -> None:
    inner = f'{prefix}module.'
    for name in [name for name in state if name.startswith(inner)]:
        state[prefix + name.removeprefix(inner)] = state.pop(name)


def _with_prefix(state: dict, prefix: str, *_: Any) -> None:
    inner = f'{prefix}module.'
    for name in [name for name in state if name.startswith(prefix)]:
        if not name.startswith(inner):
            state[inner + name.removeprefix(prefix)] = state.pop(name)
