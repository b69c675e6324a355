"""Fix label maps: 8 bits and one channel, each pixel with its label."""

import io
import zlib
from collections.abc import Container, Mapping

import numpy as np
from PIL import Image

from ..expectations import INDEX_MODES, Expectations, loaded_values
from ..facts import DEFAULT_MAX_PIXELS, MaskFacts
from ..readers.decode import ImageHead, open_image, pixels_of, read_head
from ..readers.image import read_mask_facts
from ..rules.registry import RULES
from . import Change, FixedFile

_WHITE = 255
_GREY = 0x010101
# Formats that are written, and how.
_FORMATS: Mapping[str, Mapping] = {
    # Label maps are runs: smaller than by default, in a third of the time.
    'PNG': {'compress_level': 6, 'compress_type': zlib.Z_RLE},
    'TIFF': {'compression': 'tiff_lzw'},
}


def _mode_rule(facts: MaskFacts, expected: Expectations) -> str:
    """Rule that objects to the mode; empty if none does."""
    if facts.mode not in INDEX_MODES:
        return 'SEG010'
    if expected.loader_backend == 'cv2':
        return {'P': 'SEG011', '1': 'SEG012'}.get(facts.mode, '')
    return ''


def fix_mask(
    content: bytes,
    expected: Expectations,
    facts: MaskFacts | None = None,
    *,
    rules: Container[str] = RULES,
) -> FixedFile:
    """Fix a label map: 8 bits of grey in the same format.

    ``facts`` of the content are read if they are not given.
    """
    untouched = FixedFile(content=content)
    facts = facts or read_mask_facts(content)
    if facts.error or expected.task != 'semantic':
        return untouched
    mode_rule, table = _mode_rule(facts, expected), loaded_values(expected)
    values = dict(facts.values) if facts.mode in INDEX_MODES else {}
    # Loaders cast these to 255, which is ignored.
    voids = {v for v in values if table.kind_of(v) == 'wide_void'}
    wanted = {mode_rule, 'SEG008' if voids else ''} - {''}
    if not wanted or any(rule not in rules for rule in wanted):
        return untouched
    head = read_head(content, DEFAULT_MAX_PIXELS)
    pixels, _ = pixels_of(content, head)
    with open_image(content) as image:
        frames = getattr(image, 'n_frames', 1)
    if mode_rule == 'SEG010':
        if not _is_grey(facts, head, pixels):
            return untouched
        pixels = pixels[..., 0]
        grey = np.unique(pixels).tolist()
        two = 0 < expected.num_classes <= 2
        # Grey levels need not be labels, and white may be the second class.
        if not table.fine.issuperset(grey) or (two and _WHITE in grey):
            return untouched
    elif any(not 0 <= value <= _WHITE for value in {*values} - voids):
        return untouched
    if head.kind not in _FORMATS or frames != 1:
        return untouched
    file = io.BytesIO()
    # Not from floats at once: what -1.0 becomes depends on the machine.
    labels = Image.fromarray(pixels.astype(np.int32).astype(np.uint8))
    labels.save(file, head.kind, **_FORMATS[head.kind])
    changes = []
    if mode_rule:
        was = f'mode {head.mode}'
        changes.append(Change(rule=mode_rule, was=was, now='mode L'))
    for (value, count), first in zip(facts.values, facts.first):
        if value in voids:
            y, x = divmod(first, facts.width)
            changes.append(
                Change(
                    rule='SEG008',
                    location=f'y={y}, x={x}',
                    was=str(value),
                    now=str(value % 256),
                    count=count,
                )
            )
    return FixedFile(content=file.getvalue(), changes=tuple(changes))


def _is_grey(facts: MaskFacts, head: ImageHead, pixels: np.ndarray) -> bool:
    """Whether several channels are one of 8 bits, repeated."""
    if facts.mode not in ('RGB', 'LA', 'RGBA') or head.depth > 8:
        return False
    if facts.mode != 'LA' and (
        facts.truncated or any(value % _GREY for value, _ in facts.values)
    ):
        return False
    return facts.mode == 'RGB' or not np.ptp(pixels[..., -1])
