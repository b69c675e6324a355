"""DDP that names the parameters, the reason and the cure when it fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from ..preflight import RankReport, SyncSettings, format_sync_report
from ..registry import MODEL_WRAPPERS
from ._gradient_check import GradientCheck, trainable_tensors
from ._step_vote import PeerError, StepVote, Vote, peer_gone

__all__ = ['DistributedDataParallel', 'GradientSyncError', 'PeerError']

# PyTorch has renamed it; by the old name, False leaves buffers different even
# at the start.
_BUFFERS = 'broadcast_buffers'
if 'forward_sync_buffers' in signature(TorchDDP).parameters:
    _BUFFERS = 'forward_sync_buffers'

# What PyTorch's reducer says, in errors that the user can do something about.
_REDUCER_ERRORS = (
    'Expected to have finished reduction in the prior iteration',
    'Expected to mark a variable ready only once',
    'Your training graph has changed',
)
# What Gloo says in a process when another one has ended.
_CONNECTION_ERRORS = ('Connection closed by peer', 'Connection reset by peer')


class GradientSyncError(RuntimeError):
    """The gradients of a step cannot be averaged over the processes.

    Args:
        message: For the user.
        reports: What each process knows, in the order of ranks.
    """

    def __init__(
        self, message: str, reports: tuple[RankReport, ...] = ()
    ) -> None:
        super().__init__(message)
        self.reports = reports


@MODEL_WRAPPERS.register_module()
class DistributedDataParallel(MMDistributedDataParallel):
    """MMEngine's DDP wrapper, with errors that say what to do.

    PyTorch notices a parameter without gradient at the next forward, when
    the optimizer has already used gradients that were not averaged; other
    processes then wait for it, or end with an error of their connection. Here
    every process counts the completed gradients at the end of the backward,
    and all of them vote, before the optimizer steps. If one cannot go on,
    all raise the same error, with the parameters by name, the reason, and
    the lines of the config that help. For that the step is run once more,
    see :func:`mmext.preflight.trace_step`.

    A module that is used twice under a reentrant checkpoint may keep
    gradients of a process to itself without any error in PyTorch; here it
    is refused. So is a parameter that became trainable after wrapping.

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
        check_gradients: Count and vote in every step. Without, errors are
            PyTorch's.
        device_ids: As in PyTorch; without effect for a model on a CPU.
        output_device: As in PyTorch; without effect for a model on a CPU.
        detect_anomalous_params: As in MMEngine.
        **kwargs: Further arguments of PyTorch's class, such as
            ``bucket_cap_mb``.

    Raises:
        GradientSyncError: In ``train_step`` and in a backward, if gradients
            cannot be averaged.
        PeerError: In ``train_step``, if another process has failed there, or
            is gone.
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
        device_ids: list | None = None,
        output_device: Any = None,
        detect_anomalous_params: bool = False,
        **kwargs: Any,
    ) -> None:
        if all(p.device.type == 'cpu' for p in module.parameters()):
            # Gloo takes the module where it is; an index means a GPU.
            device_ids = output_device = None
        super().__init__(
            module,
            detect_anomalous_params=detect_anomalous_params,
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            gradient_as_bucket_view=gradient_as_bucket_view,
            **{_BUFFERS: broadcast_buffers},
            device_ids=device_ids,
            output_device=output_device,
            **kwargs,
        )
        if _BUFFERS == 'broadcast_buffers' and not broadcast_buffers:
            self._equal_buffers()
        self.settings = SyncSettings(find_unused_parameters, static_graph)
        self.check_gradients = check_gradients
        self._check = GradientCheck(
            module, self.settings, self.parameters_to_ignore
        )
        self._vote = StepVote(self.process_group)
        self._queued = self._voted = False
        self._failure: Exception | None = None

    def _equal_buffers(self) -> None:
        """Begin with the buffers of the first process."""
        source = dist.get_global_rank(self.process_group, 0)
        for name, buffer in self.module.named_buffers():
            if name not in self.parameters_to_ignore:
                dist.broadcast(buffer, source, group=self.process_group)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the model; in training, watch the backward of the result.

        Args:
            *inputs: As the model's.
            **kwargs: As the model's.

        Raises:
            GradientSyncError: If a step before could not be averaged.
        """
        if self._failure is not None:
            raise self._failure
        if not (
            self.check_gradients
            and torch.is_grad_enabled()
            and self.require_backward_grad_sync
        ):
            return super().forward(*inputs, **kwargs)
        self._queued = self._voted = False
        self._check.begin(self.device.type, inputs, kwargs)
        outputs = super().forward(*inputs, **kwargs)
        for tensor in trainable_tensors(outputs):
            tensor.register_hook(self._queue_check)
        return outputs

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
        """
        self._voted = False
        try:
            return super().train_step(data, optim_wrapper)
        except (GradientSyncError, PeerError):
            raise
        except Exception as error:
            self._fail(error)
            raise
        finally:
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

    def _queue_check(self, grad: Tensor) -> None:
        """At the start of the backward: check at its end.

        The check comes before the reducer waits for other processes, as it
        is queued first.
        """
        if not self._queued:
            self._queued = True
            Variable._execution_engine.queue_callback(self._check_step)

    def _check_step(self) -> None:
        """At the end of the backward: vote on whether all is well."""
        wrong = self._check.is_wrong()
        self._cast(Vote.GRADIENTS if wrong else Vote.OK)
        self._check.finish_step(log=self._vote.rank == 0)

    def _cast(self, vote: Vote, error: str = '') -> None:
        """Vote once per step, and raise what it comes to."""
        self._voted = True
        result = self._vote.cast(vote)
        if result is Vote.OK:
            return
        if result is Vote.ERROR:
            failed = self._vote.exchange((self._vote.rank, error))
            if vote is not Vote.ERROR:
                self._failure = PeerError(_peer_message(failed))
                raise self._failure
            return
        # The reducer is in the middle of a step that will not end.
        self._remove_autograd_hooks()
        report = self._check.report(self._vote.rank, error)
        reports = self._vote.exchange(report)
        self._failure = GradientSyncError(
            format_sync_report(reports, self.settings), tuple(reports)
        )
        raise self._failure

    def _fail(self, error: Exception) -> None:
        """An error in this process: let the others know, or explain it."""
        if self._voted or not self.check_gradients:
            return
        text = f'{type(error).__name__}: {error}'
        if any(known in str(error) for known in _CONNECTION_ERRORS):
            raise peer_gone(error) from error
        if any(known in str(error) for known in _REDUCER_ERRORS):
            try:
                self._cast(Vote.GRADIENTS, text)
            except GradientSyncError as explained:
                raise explained from error
        if self._vote.size > 1:
            print_log(
                f'rank {self._vote.rank} fails, telling the others: {text}',
                'current',
                level=40,
            )
            try:
                self._cast(Vote.ERROR, text)
            except PeerError as other:
                print_log(f'could not tell them: {other}', 'current', 40)


def _peer_message(errors: list[tuple[int, str]]) -> str:
    failed = [f'rank {rank}: {text}' for rank, text in errors if text]
    return (
        'this process stops because another one failed in this step; '
        + '; '.join(failed)
    )
