"""What a loader makes of the values that a label map stores.

``LoadAnnotations`` of MMSegmentation casts to uint8, which wraps, that of
MMDetection keeps 16 bits; then
``reduce_zero_label`` turns 0 into 255 and n into n - 1, and 255 stays; then
``label_map`` replaces the values that it has, and leaves the others.
"""

import msgspec

from .expectations import Expectations
from .facts import MaskFacts

# One number per pixel; all others have several channels.
INDEX_MODES = frozenset(
    ('1', 'L', 'P', 'I', 'I;16', 'I;16B', 'I;16L', 'I;16N', 'F')
)
_EXPANDED_BY_CV2 = frozenset(('1', 'P'))
_VOID = 255
_BYTE = 256
# Void in files of more bits, which wraps to 255.
_WIDE_VOIDS = (-1, 65535)


class LoadedValues(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of each value, for one split.

    Attributes:
        value: For each stored value of 0 to 255, that after loading.
        kind: For each of them, ``'class'``, ``'ignored'``, ``'unmapped'``
            (not in a label map that there is), ``'void'`` (255, which is not
            ignored), ``'reduced'`` (254: 255 less one), ``'bad'``.
        fine: Those that are a class or ignored.
        expected: What it was made from.
    """

    value: tuple[int, ...]
    kind: tuple[str, ...]
    fine: frozenset[int]
    expected: Expectations

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
        if stored in _WIDE_VOIDS and ends == self.expected.ignore_index:
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
