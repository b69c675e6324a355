"""What is said about labels out of range: counts, places, likely cause."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ...utils.label_hints import likely_cause

__all__ = [
    'BatchContext',
    'ImageCount',
    'LabelReport',
    'is_probability',
    'make_report',
]

_MAX_VALUES = 12
_MAX_IMAGES = 8
# Interpolated masks and mixed labels miss 0 and 1 by rounding.
_TOLERANCE = 1e-4
_TOLERANCE_EPS = 4


def is_probability(target: Tensor) -> Tensor:
    """Tell the numbers in [0, 1], but for rounding.

    Args:
        target: Any shape, a floating dtype.

    Returns:
        Bool tensor like ``target``; False for NaN.

    Examples:
        >>> target = torch.tensor([0.0, 1.0000002, 1.01, torch.nan])
        >>> is_probability(target).tolist()
        [True, True, False, False]
    """
    margin = max(_TOLERANCE, _TOLERANCE_EPS * torch.finfo(target.dtype).eps)
    return (target >= -margin) & (target <= 1 + margin)


@dataclass(frozen=True)
class BatchContext:
    """The batch that is trained.

    Attributes:
        iteration: Number of the step, from 0; None if unknown.
        paths: File of each image; empty if unknown.
        rank: Of this process.
    """

    iteration: int | None = None
    paths: tuple[str, ...] = ()
    rank: int = 0


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
        changed_since: The map was written to after it was checked.
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
        total = 1
        for length in self.shape:
            total *= length
        is_map = len(self.shape) == 3
        unit = 'pixels' if is_map else 'labels'
        where = ''
        if is_map:
            where = f' in {len(self.images)} of {self.shape[0]} images'
        yield (
            f'{self.name}: {self.num_bad:,} {unit} '
            f'({100 * self.num_bad / max(total, 1):.3g} %){where} are out of '
            f'range, {self._allowed()}{self._place()}'
        )
        yield f'  values: {self._values()}'
        yield from self._image_lines(unit)
        if self.changed_since:
            yield (
                '  The label map was changed after it was checked; the '
                'values above are those of now.'
            )
        if self.num_classes is not None:
            cause = likely_cause(
                self.num_classes,
                self.ignore_index,
                dict(self.values),
                self.in_range,
                self.shape,
            )
            yield f'  Likely cause: {cause}'
        else:
            yield (
                '  Likely cause: soft labels are probabilities; divide '
                'scores by their sum, and fill all channels of an ignored '
                'pixel with ignore_index'
            )

    def _allowed(self) -> str:
        if self.num_classes is None:
            return 'soft labels must be in [0, 1]'
        return (
            f'labels must be in [0, {self.last_label}] '
            f'(num_classes={self.num_classes}, '
            f'ignore_index={self.ignore_index})'
        )

    def _place(self) -> str:
        if self.batch.iteration is None:
            return ''
        return (
            f' [iteration {self.batch.iteration + 1}, rank {self.batch.rank}]'
        )

    def _values(self) -> str:
        shown = ', '.join(
            f'{value:g} ({count:,})'
            if isinstance(value, float)
            else f'{value} ({count:,})'
            for value, count in self.values[:_MAX_VALUES]
        )
        more = len(self.values) - _MAX_VALUES
        return shown + (f', and {more} more values' if more > 0 else '')

    def _image_lines(self, unit: str) -> Iterator[str]:
        paths = self.batch.paths
        one_each = bool(paths) and len(paths) == (self.shape or (0,))[0]
        for image in self.images[:_MAX_IMAGES]:
            name = f'position {image.index}'
            if len(self.shape) > 1 or one_each:
                name = f'image {image.index} of the batch'
            if one_each:
                name = paths[image.index]
            place = image.first
            if len(place) == 2:
                place = f'y={place[0]}, x={place[1]}'
            at = f' at ({place})' if image.first else ''
            yield (
                f'  {name}: {image.count:,} {unit}, first {image.value}{at}'
            )
        more = len(self.images) - _MAX_IMAGES
        if more > 0:
            yield f'  and {more} more'
        if paths and not one_each:
            yield f'  images of this batch: {", ".join(paths)}'


def make_report(
    label: Tensor, facts: LabelReport, ignored: Tensor | None = None
) -> LabelReport:
    """Count what is out of range. Waits for the device.

    Args:
        label: The label map, ``(N, *)``.
        facts: What is known without looking at it.
        ignored: Of probabilities, those left out of the loss.

    Returns:
        ``facts``, completed.
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
                int(each)
                for each in torch.unravel_index(first, label.shape[1:])
            )
            if label.dim() > 1
            else (),
            label[index].reshape(-1)[first].item(),
        )
