"""Find labels that no class has, without waiting for an accelerator."""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor

from ._label_report import (
    BatchContext,
    LabelReport,
    is_probability,
    make_report,
)

__all__ = [
    'LabelRangeError',
    'LabelRangeMonitor',
    'current_batch',
    'out_of_range',
    'set_current_batch',
    'valid_labels',
]

POLICIES = ('raise', 'ignore')
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# Checks that wait for a hook. There are more only if none comes any more,
# such as after a training that was broken off.
_MAX_QUEUED = 64

_batch = BatchContext()


class LabelRangeError(ValueError):
    """Labels are neither classes nor the ignored value.

    Args:
        message: For the user.
        report: The facts; None where several processes report at once.
    """

    def __init__(
        self, message: str, report: LabelReport | None = None
    ) -> None:
        super().__init__(message)
        self.report = report

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.report)


def set_current_batch(
    iteration: int | None = None, paths: tuple[str, ...] = (), rank: int = 0
) -> None:
    """Tell the losses what batch they are about to see.

    :class:`mmext.LabelRangeHook` does so before each step.

    Args:
        iteration: Number of the step, from 0; None if it has none.
        paths: File of each image, in the order of the batch.
        rank: Of this process.
    """
    global _batch
    _batch = BatchContext(iteration, tuple(paths), rank)


def current_batch() -> BatchContext:
    """What :func:`set_current_batch` was told last."""
    return _batch


def _check_dtype(label: Tensor) -> None:
    if label.dtype not in _INTEGERS:
        raise TypeError(
            f'label must have an integer dtype, got {label.dtype} of shape '
            f'{tuple(label.shape)}; class indices are uint8 or int64, soft '
            "labels need the prediction's shape"
        )


def valid_labels(
    label: Tensor, num_classes: int, ignore_index: int | None
) -> Tensor:
    """Tell the labels that are classes and not ignored.

    Args:
        label: Any shape, an integer dtype.
        num_classes: ``C``; classes are ``0`` to ``C - 1``.
        ignore_index: Any int, inside of that range, too; None for no value.

    Returns:
        Bool tensor like ``label``.

    Raises:
        TypeError: If ``label`` has no integer dtype.

    Examples:
        >>> label = torch.tensor([0, 2, 3, 255], dtype=torch.uint8)
        >>> valid_labels(label, 3, 255).tolist()
        [True, True, False, False]
    """
    _check_dtype(label)
    limits = torch.iinfo(label.dtype)
    # Numbers that the dtype cannot hold would wrap around in a comparison.
    if num_classes <= limits.max:
        valid = label < num_classes
        if limits.min < 0:
            valid &= label >= 0
    else:
        valid = label >= 0
    if ignore_index is not None and (
        0 <= ignore_index < min(num_classes, limits.max + 1)
    ):
        valid &= label != ignore_index
    return valid


def out_of_range(
    label: Tensor, num_classes: int, ignore_index: int | None
) -> Tensor:
    """Tell the labels that are neither a class nor ignored.

    Args:
        label: Any shape, an integer dtype.
        num_classes: ``C``; classes are ``0`` to ``C - 1``.
        ignore_index: Any int, inside of that range, too; None for no value.

    Returns:
        Bool tensor like ``label``.

    Raises:
        TypeError: If ``label`` has no integer dtype.

    Examples:
        >>> label = torch.tensor([0, 2, 3, 255], dtype=torch.uint8)
        >>> out_of_range(label, 3, 255).tolist()
        [False, False, True, False]
    """
    return _neither(
        label, valid_labels(label, num_classes, ignore_index), ignore_index
    )


def _neither(label: Tensor, valid: Tensor, ignore_index: int | None) -> Tensor:
    limits = torch.iinfo(label.dtype)
    bad = ~valid
    if ignore_index is not None and limits.min <= ignore_index <= limits.max:
        bad &= label != ignore_index
    return bad


@dataclass
class _Queued:
    """A check whose result is on its way from the device."""

    count: Tensor | None
    event: Any
    label: Tensor
    version: int
    facts: LabelReport
    ignored: Tensor | None

    def is_ready(self, wait: bool) -> bool:
        if self.event is None:
            return True
        if wait:
            self.event.synchronize()
        return self.event.query()


def _outside_of_graphs(method: Callable) -> Callable:
    """Leave a method to Python where a model is compiled.

    What it reads changes with each batch: a graph of it would be compiled
    anew for each.
    """
    plain: list[Callable] = []

    @functools.wraps(method)
    def call(*args) -> None:
        if not torch.compiler.is_compiling():
            return method(*args)
        if not plain:
            plain.append(torch.compiler.disable(method))
        return plain[0](*args)

    return call


class LabelRangeMonitor:
    """The checks of one loss.

    On a CPU an error is raised at once. On an accelerator, reading a result
    would make the host wait: there the count of wrong labels is sent to the
    host while the training goes on, and looked at when it has come, by
    :class:`mmext.LabelRangeHook` or by the next check. The label map stays
    referenced until then; what the message says about values and places is
    worked out from it only if there is an error.

    Args:
        policy: ``'raise'`` for an error, ``'ignore'`` to leave such labels
            out of the loss, with one warning that says all that the error
            would say, and a count of what follows.
        name: Of the loss, for messages.

    Attributes:
        deferred: Whether results are looked at later; None for "where the
            labels are not on a CPU".
        has_hook: A hook looks at the results; the next check does not, as
            processes could then fail in different steps.
        num_ignored: Labels out of range that were left out so far, by
            ``'ignore'``, as far as known.

    Raises:
        ValueError: If ``policy`` is another word.
    """

    def __init__(self, policy: str = 'raise', name: str = 'loss') -> None:
        if policy not in POLICIES:
            raise ValueError(
                f"out_of_range must be 'raise' or 'ignore', got {policy!r}"
            )
        self.policy = policy
        self.name = name
        self.deferred: bool | None = None
        self.has_hook = False
        self.num_ignored = 0
        self._queue: list[_Queued] = []

    def __getstate__(self) -> dict:
        # Copies of a model, such as an average of weights, begin anew.
        fresh = {'_queue': [], 'has_hook': False, 'num_ignored': 0}
        return self.__dict__ | fresh

    def check(
        self,
        label: Tensor,
        num_classes: int,
        ignore_index: int | None,
        *,
        background: bool = False,
    ) -> Tensor:
        """Check a label map.

        Args:
            label: Class indices, any shape and integer dtype.
            num_classes: ``C``.
            ignore_index: The value that is left out of the loss; None for
                none.
            background: ``C`` itself is a label, that of no class.

        Returns:
            Bool tensor like ``label``: in range, and not ignored.

        Raises:
            LabelRangeError: On a CPU if a label is out of range, elsewhere
                if one of an earlier check was.
            TypeError: If ``label`` has no integer dtype.
        """
        count = num_classes + background
        valid = valid_labels(label, count, ignore_index)
        bad = _neither(label, valid, ignore_index)
        self._look(label, bad, None, num_classes, ignore_index, count - 1)
        return valid

    def check_soft(self, target: Tensor, ignored: Tensor) -> Tensor:
        """Check probabilities.

        Args:
            target: Any shape, a floating dtype.
            ignored: Bool, broadcasts to ``target``: left out of the loss.

        Returns:
            Bool tensor like ``target``: in ``[0, 1]`` but for rounding, and
            not ignored.

        Raises:
            LabelRangeError: As :meth:`check`.
        """
        inside = is_probability(target)
        self._look(target, ~inside & ~ignored, ignored)
        return inside & ~ignored

    def poll(self, wait: bool = False) -> None:
        """Look at the results that have come.

        Args:
            wait: Wait for all.

        Raises:
            LabelRangeError: If one of them tells of labels out of range.
        """
        while self._queue and self._queue[0].is_ready(wait):
            queued = self._queue.pop(0)
            count = int(queued.count)
            if count:
                self._tell(count, queued)

    @_outside_of_graphs
    def _look(
        self,
        label: Tensor,
        bad: Tensor,
        ignored: Tensor | None,
        num_classes: int | None = None,
        ignore_index: int | None = None,
        last_label: int = 0,
    ) -> None:
        """Look at the result now, or send it to the host."""
        if label.device.type == 'meta':
            return
        facts = LabelReport(
            name=self.name,
            num_classes=num_classes,
            ignore_index=ignore_index,
            last_label=last_label,
            batch=_batch,
        )
        label = label.detach()
        queued = _Queued(None, None, label, label._version, facts, ignored)
        deferred = self.deferred
        if deferred is None:
            deferred = label.device.type != 'cpu'
        if not deferred:
            if bool(bad.any()):
                self._tell(int(torch.count_nonzero(bad)), queued)
            return
        if not self.has_hook or len(self._queue) >= _MAX_QUEUED:
            self.poll()
        queued.count = torch.count_nonzero(bad)
        if label.device.type == 'cuda':
            host = torch.empty((), dtype=torch.int64, pin_memory=True)
            queued.count = host.copy_(queued.count, non_blocking=True)
            queued.event = torch.cuda.Event()
            queued.event.record()
        elif label.device.type != 'cpu':
            queued.event = torch.Event(label.device.type)
            queued.event.record()
        self._queue.append(queued)

    def _tell(self, count: int, queued: _Queued) -> None:
        """Raise, or warn once. Waits for the device; this is the end."""
        if self.policy == 'ignore':
            self.num_ignored += count
            if self.num_ignored > count:
                return
        report = make_report(queued.label, queued.facts, queued.ignored)
        changed = queued.label._version != queued.version
        report = replace(report, changed_since=changed)
        if self.policy == 'raise':
            self._queue.clear()
            raise LabelRangeError(str(report), report)
        print_log(
            f'{report}\n  They are left out of the loss, as '
            "out_of_range='ignore' asks for; further ones are counted, "
            'not listed.',
            'current',
            logging.WARNING,
        )
