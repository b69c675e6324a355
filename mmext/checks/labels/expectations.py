"""A split: what its training expects of labels, and where its samples are.

``LoadAnnotations`` of MMSegmentation casts to uint8, which wraps, that of
MMDetection keeps 16 bits; then ``reduce_zero_label`` turns 0 into 255 and n
into n - 1, and 255 stays; then ``label_map`` replaces the values that it has,
and leaves the others.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from ...utils.label_spec import HeadSpec, IgnoreLocation, LabelSpec
from .facts import MaskFacts, Orphan, Sample

if TYPE_CHECKING:
    from .readers.coco import CocoFile

# One number per pixel; all others have several channels.
INDEX_MODES = frozenset(
    ('1', 'L', 'P', 'I', 'I;16', 'I;16B', 'I;16L', 'I;16N', 'F')
)
_EXPANDED_BY_CV2 = frozenset(('1', 'P'))
_VOID = 255
_BYTE = 256
# Void in files of more bits, which wraps to 255.
WIDE_VOIDS = (-1, 65535)


class Expectations(LabelSpec, frozen=True, kw_only=True, omit_defaults=True):
    """What one split will be read as: its range of labels, and by what."""

    split: str = 'train'  # 'train', 'val', ...
    # 'semantic', 'detection', 'instance', 'panoptic', or 'unlabelled' for
    # pictures alone.
    task: str = 'semantic'
    # Of panoptic labels, those of objects that are counted.
    thing_classes: tuple[str, ...] = ()
    # The model is told the names of classes, so that other ones may be
    # evaluated than were trained.
    classes_are_texts: bool = False
    # The same of the data set, where the loader compares both; None if it does
    # not.
    dataset_reduces: bool | None = None
    # Pairs (stored value, value after loading) that the loader applies; empty
    # for none.
    label_map: tuple[tuple[int, int], ...] = ()
    # Each location in the config that holds a value to ignore, or to fill
    # with, or has one by default.
    ignore_locations: tuple[IgnoreLocation, ...] = ()
    heads: tuple[HeadSpec, ...] = ()  # Of the model.
    # Numbers of the data set's filter_cfg that its loader applies, by name:
    # filter_empty_gt, min_size, of XML files bbox_min_size; empty for none,
    # and of data that are not trained on.
    filter_cfg: dict[str, int] = {}
    # Location in the config of the metric that reads the same annotation file
    # by pycocotools; empty for none, None if what the file is used for is not
    # known.
    coco_metric: str | None = None
    fills_iscrowd: bool = False  # That metric sets a missing iscrowd to 0.
    loads_masks: bool = False  # The pipeline loads a mask of each object.
    # What decodes label maps: 'pillow', 'cv2', ...; 'npy' if they are arrays,
    # whose -1 is loaded as 255.
    loader_backend: str = 'pillow'
    # The loader casts label maps to uint8, which wraps, as MMSegmentation's
    # does; else values over 255 stay.
    casts_to_bytes: bool = True
    with_images: bool = True  # Images belong to what is checked.
    # Settings by which 8 bits of each channel of images are kept; empty if all
    # are kept, or it is not known.
    keeps_bytes: str = ''
    # Numbers of channels that the model takes, where images are loaded with
    # those that they have; empty for any.
    channels: tuple[int, ...] = ()
    # End of the names of images whose form is not looked at, such as
    # '.nii.gz'; empty if all are looked at.
    unread: str = ''
    # Of the key points in YOLO's label files; empty for none.
    kpt_shape: tuple[int, ...] = ()


def why_left_out(
    num_objects: int, side: float, filter_cfg: Mapping[str, int]
) -> str:
    """Why the loaders of MMDetection leave an image out of a training, or ''.

    ``num_objects`` are its annotations of a class: crowds and those that the
    loader drops later count for COCO, dropped ones do not for VOC. ``side`` is
    the shorter one that the annotation notes, in pixels.
    """
    if filter_cfg.get('filter_empty_gt') and not num_objects:
        return 'have no object of a class (filter_empty_gt)'
    least = filter_cfg.get('min_size', 0)
    if side < least:
        return f'are narrower or lower than min_size={least}'
    return ''


class LoadedValues(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of each value, for one split."""

    # For each stored value of 0 to 255, that after loading.
    value: tuple[int, ...]
    # For each of them, 'class', 'ignored', 'unmapped' (not in a label map that
    # there is), 'void' (255, which is not ignored), 'reduced' (254: 255 less
    # one), 'bad'.
    kind: tuple[str, ...]
    fine: frozenset[int]  # Those that are a class or ignored.
    expected: Expectations  # What it was made from.

    def kind_of(self, stored: int) -> str:
        """Kind of any stored value.

        As :attr:`kind`, or ``'wraps'``, or ``'wide_void'`` for -1 and 65535
        that end as the ignored value. Of arrays, which are not cast, all
        such values are ``'bad'``.
        """
        if 0 <= stored < _BYTE:
            return self.kind[stored]
        if self.expected.loader_backend == 'npy':
            return 'bad'
        if not self.expected.casts_to_bytes:
            return _kind(stored, self.expected)
        ends = self.value[stored % _BYTE]
        if stored in WIDE_VOIDS and ends == self.expected.ignore_index:
            return 'wide_void'
        return 'wraps'

    def loaded(self, stored: int) -> int:
        """What becomes of any stored value; arrays are not cast to 8 bits."""
        if self.expected.loader_backend == 'npy':
            return stored
        return load_value(stored, self.expected)


def _unmapped(stored: int, expected: Expectations) -> int:
    """What the loader makes of a stored value before its label_map."""
    value = stored % _BYTE if expected.casts_to_bytes else stored
    if expected.reduce_zero_label:
        value = _VOID if value in (0, _VOID) else value - 1
    return value


def load_value(stored: int, expected: Expectations) -> int:
    """What the loader makes of one stored value."""
    value = _unmapped(stored, expected)
    return dict(expected.label_map).get(value, value)


def _kind(stored: int, expected: Expectations) -> str:
    value = load_value(stored, expected)
    if value == expected.ignore_index:
        return 'ignored'
    mapped = dict(expected.label_map)
    if mapped and _unmapped(stored, expected) not in mapped:
        return 'void' if value == _VOID else 'unmapped'
    if not expected.num_classes or 0 <= value < expected.num_classes:
        return 'class'
    if value == _VOID:
        return 'void'
    return 'reduced' if stored == _VOID - 1 else 'bad'


_last: LoadedValues | None = None


def loaded_values(expected: Expectations) -> LoadedValues:
    """What becomes of each value, for a split; the last answer is kept."""
    global _last
    # By identity: to hash or compare a long label map takes microseconds.
    if _last is None or _last.expected is not expected:
        kinds = tuple(_kind(stored, expected) for stored in range(_BYTE))
        _last = LoadedValues(
            value=tuple(load_value(n, expected) for n in range(_BYTE)),
            kind=kinds,
            fine=frozenset(
                stored
                for stored, kind in enumerate(kinds)
                if kind in ('class', 'ignored')
            ),
            expected=expected,
        )
    return _last


def holds_indices(mask: MaskFacts | None, expected: Expectations) -> bool:
    """Whether the loader gets the stored numbers, one per pixel.

    Not of a mask that is not there, cannot be read, has several channels, or
    that OpenCV expands: palettes to colours, 1 bit to 0 and 255.
    """
    return (
        mask is not None
        and not mask.error
        and expected.task != 'panoptic'
        and mask.mode in INDEX_MODES
        and not (
            expected.loader_backend == 'cv2' and mask.mode in _EXPANDED_BY_CV2
        )
    )


def count_classes(
    counts: dict[int, int], expected: Expectations
) -> dict[int, int]:
    """Counts of stored values as counts of all classes, for known num_classes.

    What is ignored or out of range is left out.
    """
    table = loaded_values(expected)
    classes = dict.fromkeys(range(expected.num_classes), 0)
    for stored, count in counts.items():
        value = table.loaded(stored)
        if value in classes and value != expected.ignore_index:
            classes[value] += count
    return classes


@dataclass(frozen=True)
class SplitSource:
    """One split of a data set, as training would read it."""

    expected: Expectations  # What the training expects of its labels.
    # Gives the samples, anew at each call; no file of theirs is opened.
    samples: Callable[[], Iterator[Sample]]
    # Gives the files that belong to no sample.
    orphans: Callable[[], Iterator[Orphan]] = lambda: iter(())
    # The annotation file that all samples are from; None if there is none in
    # COCO's format. Samples then list only boxes that may be wrong.
    coco: 'CocoFile | None' = None
    # What a metric has pycocotools read, if that is another file; and where
    # the config has the metric.
    evaluated: 'CocoFile | None' = None
    metric: str = ''
    # The classes are the names that the annotation files have; expected does
    # not have them yet.
    learn_classes: bool = False
    # File that names one sample a line; empty without one.
    list_file: str = ''
    # Of MMEngine's file backend; None for files by path.
    backend_args: dict | None = None
