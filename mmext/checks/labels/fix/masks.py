"""Repair label maps: 8 bits, one channel, the void that the loss ignores.

A pixel keeps the label that it has. What would need a guess - colours, values
out of range - is left alone, and said so.
"""

import io
import zlib
from collections.abc import Container, Mapping, Sequence

import numpy as np
from PIL import Image

from ..expectations import Expectations
from ..facts import DEFAULT_MAX_PIXELS, MaskFacts
from ..loaded import INDEX_MODES, LoadedValues, loaded_values
from ..readers.decode import (
    DECODER_ERRORS,
    ImageHead,
    open_image,
    pixels_of,
    read_head,
)
from ..readers.mask import read_mask_facts
from ..rules.registry import fixable
from .change_log import Change, FixedFile, Left

MASK_RULES = fixable('mask')
VOID = 255
_WIDE_VOIDS = (-1, 65535)
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
_BITS_PER_SAMPLE = 258


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

    def left(reason: str, rule: str = '') -> FixedFile:
        one = Left(rule=mode_rule or rule, reason=reason)
        return FixedFile(content=content, left=(one,))

    head = read_head(content, DEFAULT_MAX_PIXELS)
    pixels, _ = pixels_of(content, head)
    values = facts.values
    if mode_rule == 'SEG010':
        why = _why_not_grey(facts, head, content, pixels)
        if why:
            return left(why)
        pixels = pixels[..., 0]
        # Those of RGB are colours.
        if facts.mode != 'LA':
            values = tuple((value & 0xFF, count) for value, count in values)
    table = loaded_values(expected)
    new, unclear = _plan(values, table, rules, unseen)
    stored = [value for value, _ in values]
    if mode_rule == 'SEG010':
        if VOID in stored and _is_black_and_white(stored, expected):
            return left('white may be a class or void')
        for value in stored:
            if value not in table.fine and value not in new:
                return left(f'the grey {value} is the index of no class')
    if not mode_rule and not new:
        return FixedFile(content=content, left=tuple(unclear))
    if any(value not in new and not 0 <= value <= VOID for value in stored):
        return left('a value of the mask does not fit into 8 bits', 'SEG008')
    # Not from floats at once: what -1.0 becomes depends on the machine.
    labels = pixels.astype(np.int32).astype(np.uint8)
    for value, (to, _) in new.items():
        labels[pixels == value] = to
    if _frames(content) != 1:
        return left('it has several frames', 'SEG004')
    fixed = _encode(labels, head.kind)
    if not fixed:
        reason = f'it is in the format {head.kind}, which may change values'
        return left(reason, 'SEG004')
    changes = []
    if mode_rule:
        changes.append(
            Change(
                rule=mode_rule,
                was=f'mode {head.mode}',
                now='mode L',
                reason='each pixel keeps its index',
            )
        )
    for (value, count), first in zip(values, facts.first):
        if value in new:
            to, rule = new[value]
            y, x = divmod(first, facts.width)
            changes.append(
                Change(
                    rule=rule,
                    place=f'y={y}, x={x}',
                    was=str(value),
                    now=str(to),
                    count=count,
                    reason='void is written as what the loss ignores '
                    f'(ignore_index={expected.ignore_index})',
                )
            )
    return FixedFile(
        content=fixed, changes=tuple(changes), left=tuple(unclear)
    )


def _plan(
    values: Sequence[tuple[int, int]],
    table: LoadedValues,
    rules: Container[str],
    unseen: Sequence[int],
) -> tuple[dict[int, tuple[int, str]], list[Left]]:
    """Stored value to what is written in its place, and the rule; the rest.

    Nothing but void changes.
    """
    kinds = {value: table.kind_of(value) for value, _ in values}
    voids = {
        value
        for value, kind in kinds.items()
        if value in _WIDE_VOIDS or (value == VOID and kind == 'void')
    }
    others_fine = all(
        kind in ('class', 'ignored')
        for value, kind in kinds.items()
        if value not in voids
    )
    ignored, to = table.expected.ignore_index, _stored_void(table)
    new: dict[int, tuple[int, str]] = {}
    left: list[Left] = []
    for value, kind in kinds.items():
        rule, why = _RULE_OF.get(kind, ''), ''
        if rule not in rules:
            continue
        if value not in voids:
            why = 'which class the value stands for is unknown'
            if kind == 'void':
                why = (
                    f'the loader makes 255 of {value}: a matter of the config'
                )
        elif kind == 'void' and _is_black_and_white(kinds, table.expected):
            continue  # White may be a class: SEG005.
        elif kind == 'void' and unseen:
            why = f'class {unseen[0]} has no pixel, so 255 may stand for it'
        elif to is None:
            why = 'no stored value is loaded as it and is no class'
            why = f'ignore_index={ignored}: {why}'
        elif not others_fine and kind != 'wide_void':
            why = (
                f'other values of the mask are wrong, too, so {value} may not '
                'be void'
            )
        if why:
            left.append(Left(rule=rule, reason=why))
        else:
            new[value] = to, rule
    return new, left


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


def _why_not_grey(
    facts: MaskFacts, head: ImageHead, content: bytes, pixels: np.ndarray
) -> str:
    """Why several channels cannot become one; empty if they can."""
    if facts.mode not in ('RGB', 'LA', 'RGBA'):
        return f'mode {facts.mode} has no class indices'
    bits = head.png.depth if head.png is not None else _tiff_bits(content)
    if bits > 8:
        return 'channels have more than 8 bits'
    if facts.mode != 'LA' and (
        facts.truncated or any(value % _GREY for value, _ in facts.values)
    ):
        return 'which colour stands for which class is unknown'
    if facts.mode != 'RGB' and np.ptp(pixels[..., -1]):
        return 'its alpha channel is not the same everywhere'
    return ''


def _tiff_bits(content: bytes) -> int:
    with open_image(content) as image:
        tags = getattr(image, 'tag_v2', {})
        return max(tags.get(_BITS_PER_SAMPLE, (8,)))


def _frames(content: bytes) -> int:
    try:
        with open_image(content) as image:
            return getattr(image, 'n_frames', 1)
    except DECODER_ERRORS:
        return 0


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
