"""Repair label maps: 8 bits, one channel, the void that the loss ignores.

A pixel keeps the label that it has. What would need a guess - colours, values
out of range - is left alone, and said so.
"""

import io
import zlib
from collections.abc import Container, Mapping, Sequence

import numpy as np
from PIL import Image

from ..expectations import (
    INDEX_MODES,
    WIDE_VOIDS,
    Expectations,
    LoadedValues,
    loaded_values,
)
from ..facts import DEFAULT_MAX_PIXELS, MaskFacts
from ..readers.decode import (
    ImageHead,
    open_image,
    pixels_of,
    read_head,
)
from ..readers.image import read_mask_facts
from ..rules.registry import SEG, fixable
from . import Change, FixedFile

MASK_RULES = fixable(SEG)
VOID = 255
_RULE_OF = {'wide_void': 'SEG008', 'wraps': 'SEG002', 'void': 'SEG004'}
_GREY = 0x010101
# Formats that keep 8 bits of grey as they are, and how to write them.
_FORMATS: Mapping[str, Mapping] = {
    # Label maps are runs: smaller than by default, in a third of the time.
    'PNG': {'compress_level': 6, 'compress_type': zlib.Z_RLE},
    'TIFF': {'compression': 'tiff_lzw'},
    'BMP': {},
    'PPM': {},
}


def _mode_rule(facts: MaskFacts, expected: Expectations) -> str:
    """Rule that objects to the mode; empty if none does."""
    if facts.mode not in INDEX_MODES:
        return 'SEG010'
    if expected.loader_backend == 'cv2':
        return {'P': 'SEG011', '1': 'SEG012'}.get(facts.mode, '')
    return ''


def needs_fix(facts: MaskFacts | None, expected: Expectations) -> bool:
    """Whether :func:`fix_mask` may have something to do."""
    if facts is None or facts.error or expected.task != 'semantic':
        return False
    table = loaded_values(expected)
    return bool(_mode_rule(facts, expected)) or any(
        table.kind_of(value) in _RULE_OF for value, _ in facts.values
    )


def fix_mask(
    content: bytes,
    expected: Expectations,
    *,
    rules: Container[str] = MASK_RULES,
    unseen: Sequence[int] = (),
) -> FixedFile:
    """Repair a label map: 8 bits of grey in the same format.

    ``unseen`` are classes that have no pixel anywhere in the data set; with
    some, 255 is not taken for void where it is not ignored.
    """
    untouched = FixedFile(content=content)
    facts = read_mask_facts(content)
    if not needs_fix(facts, expected):
        return untouched
    mode_rule = _mode_rule(facts, expected)
    if mode_rule and mode_rule not in rules:
        return untouched

    head = read_head(content, DEFAULT_MAX_PIXELS)
    with open_image(content) as image:
        frames = getattr(image, 'n_frames', 1)
    pixels, _ = pixels_of(content, head)
    values = facts.values
    if mode_rule == 'SEG010':
        if not _is_grey(facts, head, pixels):
            return untouched
        pixels = pixels[..., 0]
        # Those of RGB are colours.
        if facts.mode != 'LA':
            values = tuple((value & 0xFF, count) for value, count in values)
    table = loaded_values(expected)
    new = _voids(values, table, rules, unseen)
    stored = [value for value, _ in values]
    if mode_rule == 'SEG010' and (
        # White may be a class or void.
        (VOID in stored and _is_black_and_white(stored, expected))
        or any(n not in table.fine and n not in new for n in stored)
    ):
        return untouched
    # Others do not fit into 8 bits.
    fits = all(value in new or 0 <= value <= VOID for value in stored)
    if not fits or not (mode_rule or new) or frames != 1:
        return untouched
    # Not from floats at once: what -1.0 becomes depends on the machine.
    labels = pixels.astype(np.int32).astype(np.uint8)
    for value, (to, _) in new.items():
        labels[pixels == value] = to
    fixed = _encode(labels, head.kind)
    if not fixed:
        return untouched
    changes = []
    if mode_rule:
        was = f'mode {head.mode}'
        changes.append(Change(rule=mode_rule, was=was, now='mode L'))
    for (value, count), first in zip(values, facts.first):
        if value in new:
            to, rule = new[value]
            y, x = divmod(first, facts.width)
            changes.append(
                Change(
                    rule=rule,
                    location=f'y={y}, x={x}',
                    was=str(value),
                    now=str(to),
                    count=count,
                )
            )
    return FixedFile(content=fixed, changes=tuple(changes))


def _voids(
    values: Sequence[tuple[int, int]],
    table: LoadedValues,
    rules: Container[str],
    unseen: Sequence[int],
) -> dict[int, tuple[int, str]]:
    """What is written in place of stored void, and the rule."""
    kinds = {value: table.kind_of(value) for value, _ in values}
    voids = {
        value: kind
        for value, kind in kinds.items()
        if value in WIDE_VOIDS or (value == VOID and kind == 'void')
    }
    others_fine = all(
        kind in ('class', 'ignored')
        for value, kind in kinds.items()
        if value not in voids
    )
    # 255 may be a class: the white of two, or one that has no pixel.
    unclear = bool(unseen) or _is_black_and_white(kinds, table.expected)
    to = _stored_void(table)
    return {
        value: (to, _RULE_OF[kind])
        for value, kind in voids.items()
        if to is not None
        and _RULE_OF.get(kind) in rules
        and not (kind == 'void' and unclear)
        and (others_fine or kind == 'wide_void')
    }


def _is_black_and_white(
    values: Container[int], expected: Expectations
) -> bool:
    """Whether 255 may be the second of two classes."""
    return 0 < expected.num_classes <= 2 and set(values) <= {0, VOID}


def _stored_void(table: LoadedValues) -> int | None:
    """Stored value that the loader turns into what is ignored, if any.

    Not one that is a class, or that a label map ignores.
    """
    expected = table.expected
    ignored = expected.ignore_index
    if ignored is None or 0 <= ignored < expected.num_classes:
        return None
    mapped = {old for old, _ in expected.label_map}
    possible = [
        stored
        for stored, value in enumerate(table.value)
        if value == ignored and (stored == ignored or stored not in mapped)
    ]
    for best in (VOID, ignored):
        if best in possible:
            return best
    return possible[0] if possible else None


def _is_grey(facts: MaskFacts, head: ImageHead, pixels: np.ndarray) -> bool:
    """Whether several channels are one of 8 bits, repeated."""
    if facts.mode not in ('RGB', 'LA', 'RGBA'):
        return False
    if head.depth > 8:
        return False
    if facts.mode != 'LA' and (
        facts.truncated or any(value % _GREY for value, _ in facts.values)
    ):
        return False
    return facts.mode == 'RGB' or not np.ptp(pixels[..., -1])


def _encode(labels: np.ndarray, kind: str) -> bytes:
    """Bytes of a file of the same format; empty if it cannot hold them."""
    if kind not in _FORMATS:
        return b''
    file = io.BytesIO()
    Image.fromarray(labels).save(file, kind, **_FORMATS[kind])
    content = file.getvalue()
    head = read_head(content, labels.size)
    back, error = pixels_of(content, head)
    if error or head.mode != 'L' or not np.array_equal(back, labels):
        return b''
    return content
