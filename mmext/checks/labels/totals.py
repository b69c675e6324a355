"""What is known of a whole split: sums over samples, rows of its classes."""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from .box_columns import BoxColumns
from .expectations import INDEX_MODES, Expectations, count_classes
from .facts import BoxFacts, MaskFacts, SampleFacts

_MAX_STORED = 65535
# What sizes of images are rounded down to.
SIZE_STEP = 64


class ImageRow(NamedTuple):
    """One image, for the search of duplicates."""

    digest: str  # Of its bytes.
    # 64 bits, alike for images that look alike; -1 if unknown.
    fingerprint: int
    path: str  # As the data set names it.


class SplitTotals(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sums over the samples of a split; they do not depend on the order.

    All but ``images`` is bounded: by 65,536 values, by the number of classes
    and by the sizes that images have.
    """

    split: str  # 'train', 'val', ...
    # File that names one sample a line; empty without one.
    list_file: str = ''
    num_samples: int = 0  # All that were added.
    num_images: int = 0  # Images that could be read.
    # Label maps with one number per pixel that could be read.
    num_masks: int = 0
    # For each stored value its pixels, over those label maps.
    pixels: dict[int, int] = {}
    # For each stored value, how many of them have it.
    masks: dict[int, int] = {}
    # For each stored value, the pixels of all that have it.
    area: dict[int, int] = {}
    # Pixels of values below 0 or above 65535, and those that facts do not
    # list.
    num_outside: int = 0
    modes: dict[str, int] = {}  # Label maps by mode.
    # For each label its boxes that the loader keeps; -1 is of no class.
    # Ignored boxes are not counted here.
    boxes: dict[int, int] = {}
    # For each label, how many samples have such a box.
    box_images: dict[int, int] = {}
    num_ignored: int = 0  # Boxes that are crowd, difficult or ignored.
    # All others, whether the loader keeps them or not.
    num_annotated: int = 0
    # Of the boxes, those that bbox_min_size of filter_cfg ignores.
    num_small: int = 0
    # Samples that filter_cfg leaves out, by its reason.
    left_out: dict[str, int] = {}
    # Images by 'WxH', rounded down to multiples of 64.
    sizes: dict[str, int] = {}
    # Those that have bytes, for the search of duplicates.
    images: list[ImageRow] = []
    # Boxes of COCO, VOC or YOLO as written; None without such files.
    columns: BoxColumns | None = None
    # Whether a rule explains the labels in another way than the loader reads
    # them: the sums say nothing about the classes then.
    is_misread: bool = False

    def add(self, facts: SampleFacts, boxes: bool = True) -> None:
        """Add a sample of this split.

        Its boxes count only where a sample lists all that it has: ``boxes``.
        """
        self.num_samples += 1
        self.num_small += facts.sample.num_small
        if facts.sample.left_out:
            _count(self.left_out, facts.sample.left_out)
        image = facts.image
        if image is not None and image.digest:
            self.images.append(
                ImageRow(image.digest, image.fingerprint, facts.sample.image)
            )
        if image is not None and image.width:
            self.num_images += 1
            width = image.width // SIZE_STEP * SIZE_STEP
            height = image.height // SIZE_STEP * SIZE_STEP
            _count(self.sizes, f'{width}x{height}')
        if facts.mask is not None and not facts.mask.error:
            self._add_mask(facts.mask)
        if boxes and facts.sample.boxes:
            self._add_boxes(facts.sample.boxes)

    def _add_mask(self, mask: MaskFacts) -> None:
        _count(self.modes, mask.mode)
        if mask.mode not in INDEX_MODES:
            return
        self.num_masks += 1
        size = mask.width * mask.height
        listed = 0
        for value, count in mask.values:
            listed += count
            if 0 <= value <= _MAX_STORED:
                _count(self.pixels, value, count)
                _count(self.masks, value)
                _count(self.area, value, size)
            else:
                self.num_outside += count
        if mask.truncated:
            self.num_outside += max(size - listed, 0)

    def _add_boxes(self, boxes: Sequence[BoxFacts]) -> None:
        counted = [box for box in boxes if not box.ignored]
        self.num_ignored += len(boxes) - len(counted)
        self.num_annotated += len(counted)
        labels = [
            box.label for box in counted if not (box.small or box.unreadable)
        ]
        for label in labels:
            _count(self.boxes, label)
        for label in set(labels):
            _count(self.box_images, label)

    def add_counts(
        self,
        counts: Iterable[tuple[int, int]],
        *,
        num_ignored: int,
        num_annotated: int,
    ) -> None:
        """Add the objects of an annotation file as a whole.

        ``counts`` has, for each label in order, its objects that the loader
        keeps and the samples that have one; ignored objects are left out, and
        counted apart.
        """
        self.num_ignored += num_ignored
        self.num_annotated += num_annotated
        for label, (objects, samples) in enumerate(counts):
            if objects:
                _count(self.boxes, label, objects)
                _count(self.box_images, label, samples)


def _count(counts: dict, key: Any, number: int = 1) -> None:
    counts[key] = counts.get(key, 0) + number


class ClassCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is of a class in a split."""

    label: int
    name: str = ''  # Of the class; empty if not known.
    pixels: int = 0  # After loading, over all label maps.
    masks: int = 0  # Label maps that have it.
    area: int = 0  # Pixels of these label maps, all classes.
    boxes: int = 0  # Objects that the loader keeps and that are not ignored.
    images: int = 0  # Samples that have such an object.


class SplitReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one split holds."""

    split: str  # 'train', 'val', ...
    task: str  # As in Expectations.
    num_samples: int
    num_images: int  # Images that could be read.
    num_masks: int  # Label maps that could be read.
    num_boxes: int  # Objects that the loader keeps and that are not ignored.
    num_annotated: int  # The same with those that it drops.
    classes: tuple[ClassCounts, ...]  # One for each class, in order.


def make_split_report(
    totals: SplitTotals, expected: Expectations
) -> SplitReport:
    """Sum up a split, with a row for each class."""
    number = max(expected.num_classes, len(expected.classes))
    names = dict(enumerate(expected.classes))
    pixels, masks, area = (
        count_classes(counts, expected)
        for counts in (totals.pixels, totals.masks, totals.area)
    )
    return SplitReport(
        split=expected.split,
        task=expected.task,
        num_samples=totals.num_samples,
        num_images=totals.num_images,
        num_masks=totals.num_masks,
        num_boxes=sum(
            count for label, count in totals.boxes.items() if label >= 0
        ),
        num_annotated=totals.num_annotated,
        classes=tuple(
            ClassCounts(
                label=label,
                name=names.get(label, ''),
                pixels=pixels.get(label, 0),
                masks=masks.get(label, 0),
                area=area.get(label, 0),
                boxes=totals.boxes.get(label, 0),
                images=totals.box_images.get(label, 0),
            )
            for label in range(number)
        ),
    )


_BETA = 0.9999


def _mean_1(weight: np.ndarray) -> np.ndarray:
    return weight / weight.mean()


# Kind -> weights from the pixels of each class, and from those of all images
# that have it.
CLASS_WEIGHT_KINDS: dict[str, Callable] = {
    'inverse': lambda pixels, area: _mean_1(pixels.sum() / pixels),
    # Eigen and Fergus, 2015: frequency in the images that have the class.
    'median_frequency': lambda pixels, area: (
        np.median(pixels / area) / (pixels / area)
    ),
    # Paszke et al., 2016.
    'enet': lambda pixels, area: 1 / np.log(1.02 + pixels / pixels.sum()),
    # Cui et al., 2019: (1 - b) / (1 - b ** n); of pixels it is nearly even.
    'effective_number': lambda pixels, area: _mean_1(
        (1 - _BETA) / -np.expm1(pixels * np.log(_BETA))
    ),
    # Weights of OCNet's and PIDNet's authors for Cityscapes. The logarithm of
    # 1 is 0: a single pixel counts as two.
    'log': lambda pixels, area: _mean_1(1 / np.log(np.maximum(pixels, 2))),
}


def class_weights(
    kind: str, pixels: Sequence[int], area: Sequence[int]
) -> list[float]:
    """Weights of classes for a loss, rounded to 4 digits after the point.

    A class that does not occur gets 0: nothing is known of it.

    Examples:
        >>> class_weights('inverse', [300, 100], [400, 400])
        [0.5, 1.5]
        >>> class_weights('enet', [100, 0], [100, 0])
        [1.4223, 0.0]
    """
    counts = np.asarray(pixels, dtype=np.float64)
    areas = np.asarray(area, dtype=np.float64)
    occurs = counts > 0
    result = np.zeros(len(counts))
    result[occurs] = CLASS_WEIGHT_KINDS[kind](counts[occurs], areas[occurs])
    return result.round(4).tolist()


def describe_class_weights(kind: str, split: SplitReport) -> str:
    """Class weights of a split, of pixels or else of objects, for a config."""
    pixels = any(row.pixels for row in split.classes)
    counts = [
        (row.pixels, row.area) if pixels else (row.boxes, row.images)
        for row in split.classes
    ]
    if not any(count for count, _ in counts):
        return f'# {kind}: no weights, {split.split} has no labels'
    weights = class_weights(kind, *map(list, zip(*counts)))
    unit = 'pixels' if pixels else 'objects'
    numbers = textwrap.fill(
        ' '.join(f'{weight:g},' for weight in weights),
        72,
        initial_indent='    ',
        subsequent_indent='    ',
    )
    return (
        f'# {kind}, from {unit} of {split.split}\n'
        f'class_weight = [\n{numbers}\n]'
    )
