"""What is known of a whole split: sums over its samples."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from .expectations import INDEX_MODES
from .facts import BoxFacts, MaskFacts, SampleFacts

_MAX_STORED = 65535
_SIZE_STEP = 64


class ImageRow(NamedTuple):
    """One image, for the search of duplicates.

    Attributes:
        digest: Of its bytes.
        fingerprint: 64 bits, alike for images that look alike; -1 if
            unknown.
        path: As the data set names it.
    """

    digest: str
    fingerprint: int
    path: str


class SplitTotals(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sums over the samples of a split; they do not depend on the order.

    All but ``images`` is bounded: by 65,536 values, by the number of classes
    and by the sizes that images have.

    Attributes:
        split: ``'train'``, ``'val'``, ...
        list_file: File that names one sample a line; empty without one.
        num_samples: All that were added.
        num_images: Images that could be read.
        num_masks: Label maps with one number per pixel that could be read.
        pixels: For each stored value its pixels, over those label maps.
        masks: For each stored value, how many of them have it.
        area: For each stored value, the pixels of all that have it.
        num_outside: Pixels of values below 0 or above 65535, and those
            that facts do not list.
        modes: Label maps by mode.
        boxes: For each label its boxes; -1 is of no class. Ignored boxes
            are not counted here.
        box_images: For each label, how many samples have such a box.
        num_ignored: Boxes that are crowd, difficult or ignored.
        num_small: Of the boxes, those that ``bbox_min_size`` of
            ``filter_cfg`` ignores.
        left_out: Samples that ``filter_cfg`` leaves out, by its reason.
        sizes: Images by ``'WxH'``, rounded down to multiples of 64.
        images: Those that have bytes, for the search of duplicates.
    """

    split: str
    list_file: str = ''
    num_samples: int = 0
    num_images: int = 0
    num_masks: int = 0
    pixels: dict[int, int] = {}
    masks: dict[int, int] = {}
    area: dict[int, int] = {}
    num_outside: int = 0
    modes: dict[str, int] = {}
    boxes: dict[int, int] = {}
    box_images: dict[int, int] = {}
    num_ignored: int = 0
    num_small: int = 0
    left_out: dict[str, int] = {}
    sizes: dict[str, int] = {}
    images: list[ImageRow] = []

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
            width = image.width // _SIZE_STEP * _SIZE_STEP
            height = image.height // _SIZE_STEP * _SIZE_STEP
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

    def _add_boxes(self, boxes: Iterable[BoxFacts]) -> None:
        labels = [box.label for box in boxes if not box.ignored]
        self.num_ignored += sum(box.ignored for box in boxes)
        for label in labels:
            _count(self.boxes, label)
        for label in set(labels):
            _count(self.box_images, label)

    def add_counts(
        self, counts: Iterable[tuple[int, int]], num_ignored: int
    ) -> None:
        """Add the objects of an annotation file as a whole.

        ``counts`` has, for each label in order, its objects and the samples
        that have one; ignored objects are left out, and counted apart.
        """
        self.num_ignored += num_ignored
        for label, (objects, samples) in enumerate(counts):
            if objects:
                _count(self.boxes, label, objects)
                _count(self.box_images, label, samples)


def _count(counts: dict, key: Any, number: int = 1) -> None:
    counts[key] = counts.get(key, 0) + number
