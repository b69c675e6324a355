"""Repair label maps: 8 bits, one channel, the void that the loss ignores.

A pixel keeps the label that it has. What would need a guess - colours, values
out of range - is left alone, and said so.
"""

import io
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import msgspec
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

VOID = 255
_WIDE_VOIDS = (-1, 65535)
_FEW_CLASSES = 2


def _void_of(table: LoadedValues) -> int | None:
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


class ValuePlan:
    """What to do to the values of one label map.

    Attributes:
        new: Stored value to the one to write in its place.
        rule: For each of them, the rule whose finding it repairs.
        left: What is not repaired.
    """

    def __init__(self, table: LoadedValues, rules: Container[str]):
        self.table = table
        self.rules = rules
        self.new: dict[int, int] = {}
        self.rule: dict[int, str] = {}
        self.left: list[Left] = []

    def leave(self, rule: str, reason: str) -> None:
        """Note what is not repaired."""
        if rule in self.rules:
            self.left.append(Left(rule=rule, reason=reason))

    def void(self, stored: int, rule: str, others_fine: bool) -> None:
        """Write what is ignored in place of a void."""
        to = _void_of(self.table)
        ignored = self.table.expected.ignore_index
        if rule not in self.rules:
            return
        if to is None:
            reason = 'no stored value is loaded as it and is no class'
            self.leave(rule, f'ignore_index={ignored}: {reason}')
        elif not others_fine and rule != 'SEG008':
            self.leave(
                rule,
                f'other values of the mask are wrong, too, so {stored} may '
                'not be void',
            )
        else:
            self.new[stored] = to
            self.rule[stored] = rule


def plan_values(
    values: Sequence[tuple[int, int]],
    table: LoadedValues,
    rules: Container[str],
    unseen: Sequence[int],
) -> ValuePlan:
    """Plan what to write for each stored value; nothing but void changes."""
    plan = ValuePlan(table, rules)
    kinds = {value: table.kind_of(value) for value, _ in values}
    voids = {
        value
        for value, kind in kinds.items()
        if value in _WIDE_VOIDS or (value == VOID and kind == 'void')
    }
    fine = all(
        kind in ('class', 'ignored')
        for value, kind in kinds.items()
        if value not in voids
    )
    for value, kind in kinds.items():
        if kind == 'wide_void':
            plan.void(value, 'SEG008', fine)
        elif kind == 'wraps' and value in voids:
            plan.void(value, 'SEG002', fine)
        elif kind == 'wraps':
            plan.leave('SEG002', 'which class the value stands for is unknown')
        elif kind == 'void' and value not in voids:
            plan.leave(
                'SEG004',
                f'the loader makes 255 of {value}: a matter of the config',
            )
        elif kind == 'void' and is_black_and_white(kinds, table.expected):
            plan.leave('SEG005', 'white may be a class or void')
        elif kind == 'void' and unseen:
            plan.leave(
                'SEG004',
                f'class {unseen[0]} has no pixel, so 255 may stand for it',
            )
        elif kind == 'void':
            plan.void(value, 'SEG004', fine)
    return plan


def is_black_and_white(values: Iterable[int], expected: Expectations) -> bool:
    """Whether 255 may be the second of two classes, by the values of a mask.

    Examples:
        >>> is_black_and_white([0, 255], Expectations(num_classes=2))
        True
        >>> is_black_and_white([0, 1, 255], Expectations(num_classes=2))
        False
    """
    return 0 < expected.num_classes <= _FEW_CLASSES and set(values) <= {
        0,
        VOID,
    }


MASK_RULES = fixable('mask')
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
    """Whether :func:`fix_mask` may have something to do."""
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
    """Repair a label map: 8 bits of grey in the same format.

    ``unseen`` are classes that have no pixel anywhere in the data set; with
    some, 255 is not taken for void where it is not ignored.
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
