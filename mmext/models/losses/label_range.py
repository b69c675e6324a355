"""Find labels that no class has, without waiting for an accelerator."""

import functools
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from mmengine.logging import print_log
from torch import Tensor

from ...utils.label_spec import allowed_labels, likely_cause, values_text
from ...utils.torch_compat import is_compiling

_MAX_IMAGES = 8
# Interpolated masks and mixed labels miss 0 and 1 by rounding.
_TOLERANCE = 1e-4
_TOLERANCE_EPS = 4


def is_probability(target: Tensor) -> Tensor:
    """Mask of the numbers in [0, 1], up to rounding.

    ``target``: Any shape, a floating dtype.
    """
    margin = max(_TOLERANCE, _TOLERANCE_EPS * torch.finfo(target.dtype).eps)
    return (target >= -margin) & (target <= 1 + margin)


@dataclass(frozen=True)
class BatchContext:
    """The current batch of the training.

    Attributes:
        iteration: Number of the step, from 0; None if unknown.
        paths: File of each image; empty if unknown.
        rank: Of this process.
        masks: File of each label map; empty if unknown.
    """

    iteration: int | None = None
    paths: tuple[str, ...] = ()
    rank: int = 0
    masks: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageCount:
    """Labels out of range in one image.

    Attributes:
        index: In the batch.
        count: How many.
        first: Position of the first, without the batch dimension.
        value: Of the first.
    """

    index: int
    count: int
    first: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class LabelReport:
    """Labels out of range in one batch.

    Attributes:
        name: Of the loss.
        num_classes: ``C``; None if labels are probabilities.
        ignore_index: None if nothing is ignored.
        last_label: The largest label in range.
        batch: What is known of the batch.
        shape: Of the label map.
        num_bad: How many labels are out of range.
        values: Each such value with its count, the most frequent first.
        in_range: Values in range that occur.
        images: Those with labels out of range.
        changed_since: Whether the map was changed after the check.
    """

    name: str
    num_classes: int | None = None
    ignore_index: int | None = None
    last_label: int = 0
    batch: BatchContext = field(default_factory=BatchContext)
    shape: tuple[int, ...] = ()
    num_bad: int = 0
    values: tuple[tuple[float, int], ...] = ()
    in_range: tuple[float, ...] = ()
    images: tuple[ImageCount, ...] = ()
    changed_since: bool = False

    def __str__(self) -> str:
        return '\n'.join(self._lines())

    def _lines(self) -> Iterator[str]:
        total = math.prod(self.shape)
        unit, where, step = 'labels', '', ''
        if len(self.shape) == 3:
            unit = 'pixels'
            where = f' in {len(self.images)} of {self.shape[0]} images'
        allowed = 'soft labels must be in [0, 1]'
        cause = (
            'soft labels are probabilities; divide scores by their sum, and '
            'fill all channels of an ignored pixel with ignore_index'
        )
        if self.num_classes is not None:
            allowed = allowed_labels(
                self.num_classes, self.ignore_index, self.last_label
            )
            cause = likely_cause(
                self.num_classes,
                self.ignore_index,
                dict(self.values),
                self.in_range,
                self.shape,
            )
        if self.batch.iteration is not None:
            step = (
                f' [iteration {self.batch.iteration + 1}, rank '
                f'{self.batch.rank}]'
            )
        yield (
            f'{self.name}: {self.num_bad:,} {unit} '
            f'({100 * self.num_bad / max(total, 1):.3g} %){where} are out of '
            f'range, {allowed}{step}'
        )
        yield f'  values: {values_text(self.values)}'
        yield from self._image_lines(unit)
        if self.changed_since:
            yield (
                '  The label map was changed after it was checked; the '
                'values above are the present ones.'
            )
        yield f'  Likely cause: {cause}'

    def _image_lines(self, unit: str) -> Iterator[str]:
        paths, masks = self.batch.paths, self.batch.masks
        one_each = bool(paths) and len(paths) == (self.shape or (0,))[0]
        for image in self.images[:_MAX_IMAGES]:
            name = f'position {image.index}'
            if one_each:
                name = paths[image.index]
                if len(masks) == len(paths):
                    name = f'{name}, mask {masks[image.index]}'
            elif len(self.shape) > 1:
                name = f'image {image.index} of the batch'
            position = ', '.join(map(str, image.first))
            if len(image.first) == 2:
                position = 'y={}, x={}'.format(*image.first)
            at = f' at ({position})' if position else ''
            yield (
                f'  {name}: {image.count:,} {unit}, first {image.value}{at}'
            )
        more = len(self.images) - _MAX_IMAGES
        if more > 0:
            yield f'  and {more} more'
        if paths and not one_each:
            yield f'  images of this batch: {", ".join(paths)}'
            if masks:
                yield f'  masks of this batch: {", ".join(masks)}'


def make_report(
    label: Tensor, facts: LabelReport, ignored: Tensor | None = None
) -> LabelReport:
    """Count what is out of range. Waits for the device.

    ``label``: The label map, ``(N, *)``.
    """
    label = label.cpu()
    if facts.num_classes is None:
        bad = ~is_probability(label)
        if ignored is not None:
            bad &= ~ignored.cpu()
    else:
        # int64 holds every dtype's numbers, so that nothing wraps.
        label = label.long()
        bad = (label < 0) | (label > facts.last_label)
    if facts.ignore_index is not None:
        bad &= label != facts.ignore_index
    values, counts = torch.unique(label[bad], return_counts=True)
    order = counts.argsort(descending=True, stable=True)
    inside = ()
    if facts.num_classes is not None:
        inside = tuple(torch.unique(label[~bad]).tolist())
    return replace(
        facts,
        shape=tuple(label.shape),
        num_bad=int(bad.sum()),
        values=tuple(zip(values[order].tolist(), counts[order].tolist())),
        in_range=inside,
        images=tuple(_image_counts(label, bad)),
    )


def _image_counts(label: Tensor, bad: Tensor) -> Iterator[ImageCount]:
    if not label.dim():
        label, bad = label[None], bad[None]
    flat = bad.reshape(len(bad), -1)
    for index in flat.any(1).nonzero().flatten().tolist():
        first = flat[index].to(torch.uint8).argmax()
        yield ImageCount(
            index,
            int(flat[index].sum()),
            tuple(
                int(index)
                for index in np.unravel_index(int(first), label.shape[1:])
            )
            if label.dim() > 1
            else (),
            label[index].reshape(-1)[first].item(),
        )


def find_out_of_range(
    label: Tensor,
    num_classes: int,
    ignore_index: int | None,
    *,
    name: str,
    paths: tuple[str, ...] = (),
    masks: tuple[str, ...] = (),
) -> LabelReport | None:
    """Report labels out of range; None if there are none.

    Args:
        label: ``(N, *)``, an integer dtype.
        num_classes: ``C``; classes are ``0`` to ``C - 1``.
        ignore_index: Value to ignore; None for no value.
        name: Of the loss or data set, for the report.
        paths: File of each of the N images; empty if unknown.
        masks: File of each of the N label maps; empty if unknown.
    """
    if not label.numel():
        return None
    low, high = (int(value) for value in label.aminmax())
    if low >= 0 and high < num_classes:
        return None
    facts = LabelReport(
        name=name,
        num_classes=num_classes,
        ignore_index=ignore_index,
        last_label=num_classes - 1,
        batch=BatchContext(paths=paths, masks=masks),
    )
    report = make_report(label.detach(), facts)
    return report if report.num_bad else None


POLICIES = ('raise', 'ignore')
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# Checks that wait for a hook. There are more only if no hook reads them, such
# as after an interrupted training.
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
    iteration: int | None = None,
    paths: tuple[str, ...] = (),
    rank: int = 0,
    masks: tuple[str, ...] = (),
) -> None:
    """Set the batch that error messages of the losses name.

    :class:`mmext.LabelRangeHook` calls it before each step.

    Args:
        iteration: Number of the step, from 0; None if it has none.
        paths: File of each image, in the order of the batch.
        rank: Of this process.
        masks: File of each label map, in the same order.
    """
    global _batch
    _batch = BatchContext(iteration, tuple(paths), rank, tuple(masks))


def valid_labels(
    label: Tensor, num_classes: int, ignore_index: int | None
) -> Tensor:
    """Mask of the labels that are classes and not ignored.

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
    if label.dtype not in _INTEGERS:
        raise TypeError(
            f'label must have an integer dtype, got {label.dtype} of shape '
            f'{tuple(label.shape)}; class indices are uint8 or int64, soft '
            "labels need the prediction's shape"
        )
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
    label: Tensor, valid: Tensor, ignore_index: int | None
) -> Tensor:
    """Mask of the labels that are not valid, and not ignored either."""
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

    What it reads changes with each batch: its graph would be compiled again
    for each batch.
    """
    plain: list[Callable] = []

    @functools.wraps(method)
    def call(*args) -> None:
        if not is_compiling():
            return method(*args)
        if not plain:
            plain.append(torch.compiler.disable(method))
        return plain[0](*args)

    return call


class LabelRangeMonitor:
    """Checks the labels of one loss.

    On a CPU an error is raised at once. On an accelerator, reading a result
    would make the host wait: there the count of wrong labels is sent to the
    host while the training goes on, and looked at when it has come, by
    :class:`mmext.LabelRangeHook` or by the next check. The label map stays
    referenced until then; values and positions for the message are computed
    from it only if there is an error.

    Args:
        policy: ``'raise'`` raises an error. ``'ignore'`` leaves such labels
            out of the loss: it logs the text of the error once, as a
            warning, and only counts later labels.
        name: Of the loss, for messages.

    Attributes:
        deferred: Whether results are read later; None for "if the labels
            are not on a CPU".
        has_hook: Whether a hook reads the results. The next check then does
            not, as processes could otherwise fail in different steps.
        num_ignored: How many labels out of range ``'ignore'`` has left out,
            of the results that have arrived.

    Raises:
        ValueError: If ``policy`` is neither ``'raise'`` nor ``'ignore'``.
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
            background: Whether ``C`` is a label, too: background.

        Returns:
            Bool tensor like ``label``: in range, and not ignored.

        Raises:
            LabelRangeError: On a CPU if a label is out of range, elsewhere
                if one of an earlier check was.
            TypeError: If ``label`` has no integer dtype.
        """
        count = num_classes + background
        valid = valid_labels(label, count, ignore_index)
        bad = out_of_range(label, valid, ignore_index)
        self._look(label, bad, None, num_classes, ignore_index, count - 1)
        return valid

    def check_soft(self, target: Tensor, ignored: Tensor) -> Tensor:
        """Check probabilities.

        Args:
            target: Any shape, a floating dtype.
            ignored: Bool, broadcasts to ``target``: left out of the loss.

        Returns:
            Bool tensor like ``target``: in ``[0, 1]`` up to rounding, and not
            ignored.

        Raises:
            LabelRangeError: As :meth:`check`.
        """
        inside = is_probability(target)
        self._look(target, ~inside & ~ignored, ignored)
        return inside & ~ignored

    def poll(self, wait: bool = False) -> None:
        """Read the results that have arrived.

        Args:
            wait: Wait for all results.

        Raises:
            LabelRangeError: If one of them reports labels out of range.
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
            count = int(torch.count_nonzero(bad))
            if count:
                self._tell(count, queued)
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
