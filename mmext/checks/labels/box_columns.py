"""All boxes of a split as columns, with the numbers of its annotation files.

A systematic fault, such as corners in place of width and height, concerns
every box. The rules of ``rules/box_formats.py`` look for it in these columns
before other rules look at single boxes.
"""

import sys
from array import array
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from ..findings import Location
from .expectations import SplitSource
from .facts import SampleFacts, box_size
from .sources.coco import image_rows


class BoxColumns(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """``N`` boxes of a split; crowds and ignored objects are left out."""

    format: str  # 'coco', 'voc' or 'yolo'
    written: np.ndarray  # (N, 4), numbers of the file; NaN if unreadable
    size: np.ndarray  # (N, 2), width and height of the image; 0 if unknown
    polygon: np.ndarray  # (N, 4), box around the polygons; NaN without them
    label: np.ndarray  # (N,), category id or class index
    labels: Sequence[int]  # labels that the data set defines; empty for VOC
    location: Callable[[int], Location]  # location of a box, by row


class BoxCollector:
    """Collects the boxes of a split, sample by sample."""

    def __init__(self, source: SplitSource) -> None:
        self._source = source
        self._format = 'coco' if source.coco is not None else ''
        # Rows of VOC and YOLO; of COCO, the sizes of all images.
        self._written, self._size = array('d'), array('d')
        self._label, self._owner = array('q'), array('q')
        self._key: list[str] = []
        self._files: list[tuple[str, str]] = []

    def add(self, facts: SampleFacts) -> None:
        """Add the boxes of a sample that has an annotation file."""
        sample, file = facts.sample, facts.annotation or facts.yolo
        is_coco = self._format == 'coco'
        if not is_coco and file is None:
            return
        size = box_size(facts)
        self._files.append((sample.annotation, sample.image or sample.name))
        if is_coco:
            self._size.extend(size)
            return
        self._format = sample.annotation_kind
        for box in file.boxes:
            if box.ignored:
                continue
            numbers = x1, y1, x2, y2 = box.box
            if facts.yolo is not None:
                numbers = (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1
            self._written.extend(numbers)
            self._size.extend(size)
            self._label.append(box.label)
            self._owner.append(len(self._files) - 1)
            self._key.append(sys.intern(box.location))

    def columns(self) -> BoxColumns | None:
        """The columns; None for a split without such annotation files."""
        size = np.array(self._size).reshape(-1, 2)
        if self._format == 'coco':
            return self._of_coco(size)
        if not self._format:
            return None
        expected = self._source.expected
        number = max(expected.num_classes, len(expected.classes))

        def location(row: int) -> Location:
            file, image = self._files[self._owner[row]]
            return Location(file=file, key=self._key[row], image=image)

        return BoxColumns(
            format=self._format,
            written=np.array(self._written).reshape(-1, 4),
            size=size,
            polygon=np.full((len(size), 4), np.nan),
            label=np.array(self._label),
            labels=range(number if self._format == 'yolo' else 0),
            location=location,
        )

    def _of_coco(self, size: np.ndarray) -> BoxColumns:
        file = self._source.coco
        notes, images = file.annotations, image_rows(file)
        rows = np.flatnonzero(
            (images >= 0) & (notes.iscrowd == 0) & ~notes.ignore
        )

        def location(row: int) -> Location:
            path, image = self._files[images[rows[row]]]
            key = f'annotations[{notes.index[rows[row]]}]'
            return Location(file=path, key=key, image=image)

        # Ids that are not whole numbers have no distance from each other.
        is_number = not file.ids
        return BoxColumns(
            format='coco',
            written=notes.bbox[rows],
            size=size[images[rows]],
            polygon=notes.polygon_box[rows],
            label=notes.category_id[rows],
            labels=file.categories.id.tolist() if is_number else (),
            location=location,
        )
