"""Report labels out of range with their images, on all processes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmengine.dist import get_rank, is_distributed
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import distributed as dist
from torch import nn

from ...models.losses import (
    LabelRangeError,
    LabelRangeMonitor,
    set_current_batch,
)
from ...registry import HOOKS
from ..distributed import StepVote, Vote, unwrap_model


def find_monitors(model: nn.Module) -> dict[str, LabelRangeMonitor]:
    """Label checks of a model's losses, by the names of the losses."""
    monitors: dict[str, LabelRangeMonitor] = {}
    for name, module in unwrap_model(model).named_modules():
        monitor = getattr(module, 'label_range', None)
        if isinstance(monitor, LabelRangeMonitor):
            loss_name = getattr(module, 'loss_name', '')
            suffix = f' ({loss_name})' if loss_name else ''
            monitors[f'{name or type(module).__name__}{suffix}'] = monitor
    return monitors


def samples_of(batch: Any) -> Iterator[Any]:
    """Data samples, also of batches of test-time augmentation."""
    if isinstance(batch, Mapping):
        batch = batch.get('data_samples')
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        for item in batch:
            yield from samples_of(item)
    elif batch is not None:
        yield batch


def image_paths(batch: Any, key: str = 'img_path') -> tuple[str, ...]:
    """Files of a batch's images, in order; () if a sample names none.

    ``key`` is ``'seg_map_path'`` for those of the label maps.
    """
    paths = tuple(getattr(sample, key, None) for sample in samples_of(batch))
    return () if None in paths else tuple(map(str, paths))


@HOOKS.register_module()
class LabelRangeHook(Hook):
    """Stop the training where labels are out of range, and say which.

    Gives the losses that check their labels, such as
    :class:`mmext.CheckedCrossEntropyLoss`, their name in the model, the
    iteration, and the images of the batch, so that their error names them.

    On GPUs the losses do not wait for the device; this hook looks, after
    each step, at the results that have come by then, without waiting, and
    raises the error, one or a few steps late, for the step that caused it.
    At the end of the training it waits for the last ones.

    With several processes on GPUs, they agree after each step, over Gloo,
    whether one of them has an error; then all raise it.

    Note:
        That agreement is a reduction of one number between the hosts, well
        under a millisecond if they are equally fast; it does not wait for
        the devices.

    Raises:
        LabelRangeError: If a loss has met a label out of range whose
            ``out_of_range`` is ``'raise'``.
    """

    priority = 'VERY_HIGH'

    def __init__(self) -> None:
        self._monitors: dict[str, LabelRangeMonitor] = {}
        self._vote: StepVote | None = None

    def before_train(self, runner: Runner) -> None:
        """Find the losses, and name them after their position in the model."""
        self._monitors = find_monitors(runner.model)
        for name, monitor in self._monitors.items():
            monitor.name = name
            monitor.has_hook = True
        self._vote = None
        if is_distributed() and self._is_deferred(runner.model):
            self._vote = StepVote(dist.group.WORLD)

    def _is_deferred(self, model: nn.Module) -> bool:
        """Whether errors come later than in the step; same on all ranks."""
        first = next(model.parameters(), None)
        on_device = first is not None and first.device.type != 'cpu'
        return any(
            on_device if monitor.deferred is None else monitor.deferred
            for monitor in self._monitors.values()
        )

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None
    ) -> None:
        """Hand the losses the files of the batch."""
        set_current_batch(
            runner.iter,
            image_paths(data_batch),
            get_rank(),
            image_paths(data_batch, 'seg_map_path'),
        )

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: dict | None = None,
    ) -> None:
        """Look at the results that have come."""
        self._poll(wait=False)

    def after_train(self, runner: Runner) -> None:
        """Wait for the last results, and sum up what was left out."""
        self._poll(wait=True)
        set_current_batch()
        for name, monitor in self._monitors.items():
            monitor.has_hook = False
            if monitor.num_ignored:
                runner.logger.warning(
                    f'{name}: {monitor.num_ignored:,} labels out of range '
                    'were left out of the loss in this training'
                )

    def _poll(self, wait: bool) -> None:
        """Read the results, and agree with the other processes."""
        error: LabelRangeError | None = None
        for monitor in self._monitors.values():
            try:
                monitor.poll(wait)
            except LabelRangeError as new_error:
                error = error or new_error
        if self._vote is not None:
            vote = Vote.OK if error is None else Vote.ERROR
            if self._vote.cast(vote) is not Vote.OK:
                self._raise_all(error)
        if error is not None:
            raise error

    def _raise_all(self, error: LabelRangeError | None) -> None:
        """Raise the errors of all processes on this one."""
        texts = self._vote.exchange('' if error is None else str(error))
        report = None if error is None else error.report
        raise LabelRangeError('\n'.join(filter(None, texts)), report)
