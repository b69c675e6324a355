"""Repair label maps: 8 bits, one channel, the void that the loss ignores.

A pixel keeps the label that it has. What would need a guess - colours, values
out of range - is left alone, and said so.
"""

import io
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from PIL import Image

from ..expectations import Expectations
from ..facts import MaskFacts
from ..loaded import INDEX_MODES, loaded_values
from ..readers._decode import (
    DECODER_ERRORS,
    DEFAULT_MAX_PIXELS,
    ImageHead,
    open_image,
    pixels_of,
    read_head,
)
from ..readers.mask_reader import read_mask_facts
from ._mask_values import VOID, ValuePlan, is_black_and_white, plan_values
from .change_log import Change, FixedFile, Left

__all__ = ['MASK_RULES', 'fix_mask', 'needs_fix']

MASK_RULES = frozenset(
    ('SEG002', 'SEG004', 'SEG008', 'SEG010', 'SEG011', 'SEG012')
)
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
_MODES_WITH_ALPHA = ('LA', 'RGBA')


def _mode_rule(facts: MaskFacts, expected: Expectations) -> str:
    """Rule that objects to the mode; empty if none does."""
    if facts.mode not in INDEX_MODES:
        return 'SEG010'
    if expected.loader_backend == 'cv2':
        return {'P': 'SEG011', '1': 'SEG012'}.get(facts.mode, '')
    return ''


def needs_fix(facts: MaskFacts | None, expected: Expectations) -> bool:
    """Whether :func:`fix_mask` may have something to do.

    Args:
        facts: Of the label map; None if there is none.
        expected: Of its split.

    Returns:
        False for those that cannot be read, and for what is no map of
        classes.
    """
    if facts is None or facts.error or expected.task != 'semantic':
        return False
    if _mode_rule(facts, expected):
        return True
    kinds = ('void', 'wide_void', 'wraps')
    table = loaded_values(expected)
    return any(table.kind_of(value) in kinds for value, _ in facts.values)


def _why_not_grey(
    facts: MaskFacts, head: ImageHead, content: bytes, pixels: np.ndarray
) -> str:
    """Why several channels cannot become one; empty if they can."""
    if facts.mode not in ('RGB', *_MODES_WITH_ALPHA):
        return f'mode {facts.mode} has no class indices'
    if _bits(head, content) > 8:
        return 'channels have more than 8 bits'
    if facts.mode != 'LA' and (
        facts.truncated or any(value % _GREY for value, _ in facts.values)
    ):
        return 'which colour stands for which class is unknown'
    if facts.mode in _MODES_WITH_ALPHA and np.ptp(pixels[..., -1]):
        return 'its alpha channel is not the same everywhere'
    return ''


def _bits(head: ImageHead, content: bytes) -> int:
    if head.png is not None:
        return head.png.depth
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


def fix_mask(
    content: bytes,
    expected: Expectations,
    *,
    rules: Container[str] = MASK_RULES,
    unseen: Sequence[int] = (),
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> FixedFile:
    """Repair a label map.

    Args:
        content: Bytes of the file.
        expected: Of its split.
        rules: Ids of rules whose findings are repaired.
        unseen: Classes that have no pixel anywhere in the data set; with
            some, 255 is not taken for void where it is not ignored.
        max_pixels: Larger ones are left alone.

    Returns:
        A file of the same format, with 8 bits of grey, if something was
        repaired.

    Note:
        Loaded labels differ from those before only where a void was not
        ignored, and where the loader had made colours of them.
    """
    untouched = FixedFile(content=content)
    facts = read_mask_facts(content, max_pixels=max_pixels)
    if not needs_fix(facts, expected):
        return untouched
    mode_rule = _mode_rule(facts, expected)
    if mode_rule and mode_rule not in rules:
        return untouched
    head = read_head(content, max_pixels)
    pixels, _ = pixels_of(content, head)
    if mode_rule == 'SEG010':
        why = _why_not_grey(facts, head, content, pixels)
        if why:
            return _left(content, mode_rule, why)
        facts = _first_channel(facts)
        pixels = pixels[..., 0]
    plan = plan_values(facts.values, loaded_values(expected), rules, unseen)
    if mode_rule == 'SEG010':
        why = _why_no_indices(facts, plan)
        if why:
            return _left(content, mode_rule, why)
    if not mode_rule and not plan.new:
        return FixedFile(content=content, left=tuple(plan.left))
    if any(not 0 <= plan.new.get(v, v) <= VOID for v, _ in facts.values):
        reason = 'a value of the mask does not fit into 8 bits'
        return _left(content, mode_rule or 'SEG008', reason)
    labels = _mapped(pixels, plan.new)
    if _frames(content) != 1:
        return _left(content, mode_rule or 'SEG004', 'it has several frames')
    fixed = _encode(labels, head.kind)
    if not fixed:
        reason = f'it is in the format {head.kind}, which may change values'
        return _left(content, mode_rule or 'SEG004', reason)
    return FixedFile(
        content=fixed,
        changes=tuple(_changes(facts, head.mode, mode_rule, plan)),
        left=tuple(plan.left),
    )


def _left(content: bytes, rule: str, reason: str) -> FixedFile:
    return FixedFile(content=content, left=(Left(rule=rule, reason=reason),))


def _first_channel(facts: MaskFacts) -> MaskFacts:
    """Facts of the first of equal channels."""
    if facts.mode == 'LA':
        return facts
    values = tuple((value & 0xFF, count) for value, count in facts.values)
    return msgspec.structs.replace(facts, values=values)


def _why_no_indices(facts: MaskFacts, plan: ValuePlan) -> str:
    """Why levels of grey are not taken for class indices."""
    table = plan.table
    values = dict(facts.values)
    if is_black_and_white(values, table.expected) and VOID in values:
        return 'white may be a class or void'
    for value in values:
        if value not in table.fine and value not in plan.new:
            return f'the grey {value} is the index of no class'
    return ''


def _mapped(pixels: np.ndarray, new: Mapping[int, int]) -> np.ndarray:
    """Labels of 8 bits."""
    # Not from floats at once: what -1.0 becomes depends on the machine.
    labels = pixels.astype(np.int32).astype(np.uint8)
    for stored, value in new.items():
        labels[pixels == stored] = value
    return labels


def _changes(
    facts: MaskFacts, mode: str, mode_rule: str, plan: ValuePlan
) -> Iterator[Change]:
    if mode_rule:
        yield Change(
            rule=mode_rule,
            was=f'mode {mode}',
            now='mode L',
            reason='each pixel keeps its index',
        )
    for (value, count), first in zip(facts.values, facts.first):
        if value in plan.new:
            y, x = divmod(first, facts.width)
            yield Change(
                rule=plan.rule[value],
                place=f'y={y}, x={x}',
                was=str(value),
                now=str(plan.new[value]),
                count=count,
                reason='void is written as what the loss ignores '
                f'(ignore_index={plan.table.expected.ignore_index})',
            )
