"""Repair an annotation file in Pascal VOC's XML format: parse, edit, dump."""

import math
from collections.abc import Container
from xml.etree import ElementTree

from ....datasets import box_limits
from ..facts import BoxFacts, ImageFacts, VocFile, has_size, is_turned
from ..readers.boxes import read_voc
from ..rules.registry import DET, PAIR, fixable
from . import Change, FixedFile
from .coco import may_change_size

VOC_RULES = fixable(DET, PAIR)
_BLANKS = ' \t\r\n'
_CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')


class _Draft:
    """A file while it is repaired, through the tree of its root element."""

    def __init__(self, content: bytes, rules: Container[str]):
        # Not lxml: the reader has accepted the file with the same parser.
        self.root = ElementTree.fromstring(content)
        self.rules = rules
        self.changes: list[Change] = []

    def remove(
        self, rule: str, element: ElementTree.Element, location: str
    ) -> None:
        """Take a child of the root out, and the blanks and line end before."""
        after, element.tail = element.tail or '', None
        number = list(self.root).index(element)
        if number:
            before = self.root[number - 1]
            before.tail = (before.tail or '').rstrip(_BLANKS) + after
        else:
            self.root.text = (self.root.text or '').rstrip(_BLANKS) + after
        self.root.remove(element)
        was = ElementTree.tostring(element, encoding='unicode')
        self.changes.append(Change(rule=rule, location=location, was=was))

    def write(
        self,
        rule: str,
        element: ElementTree.Element,
        location: str,
        number: int,
    ) -> None:
        """Write another number."""
        was, now = (element.text or '').strip(), str(number)
        element.text = now
        self.changes.append(
            Change(rule=rule, location=location, was=was, now=now)
        )

    def dump(self, old: bytes) -> bytes:
        """The file as it is now, in UTF-8."""
        # Of two bytes for each letter, one is zero.
        declared = b'<?xml' in old[:64].replace(b'\0', b'')
        new = ElementTree.tostring(
            self.root, encoding='utf-8', xml_declaration=declared
        )
        return new + b'\n'


def fix_voc(
    content: bytes,
    image: ImageFacts | None = None,
    *,
    rules: Container[str] = VOC_RULES,
) -> FixedFile:
    """Repair an annotation file.

    Pixels are counted from 1 in these files, and a box includes its last
    one; a loader that takes 1 off finds the same boxes right.

    What is repaired keeps its indentation, and loses comments.
    """
    file = read_voc(content)
    if file.error:
        return FixedFile(content=content)
    draft = _Draft(content, rules)
    size = _fix_size(draft, file, image)
    seen: dict[tuple, int] = {}
    objects = draft.root.findall('object')
    for number, (element, box) in enumerate(zip(objects, file.boxes)):
        before = len(draft.changes)
        if _fix_object(draft, element, box, size):
            continue
        first = seen.setdefault(_said(element), number)
        if first != number and 'DET010' in rules:
            del draft.changes[before:]
            draft.remove('DET010', element, box.location)
    return FixedFile(
        content=draft.dump(content) if draft.changes else content,
        changes=tuple(draft.changes),
    )


def _said(element: ElementTree.Element) -> tuple:
    """Names and texts of an element and all in it."""
    text = (element.text or '').strip()
    return element.tag, text, tuple(map(_said, element))


def _fix_size(
    draft: _Draft, file: VocFile, image: ImageFacts | None
) -> tuple[int, int] | None:
    """The size that boxes are held against; None if it is not certain."""
    noted = file.width, file.height
    if not has_size(image):
        return noted if all(noted) else None
    stored = image.width, image.height
    if is_turned(image):
        return None
    sides = ('width', 'height')
    elements = [draft.root.find(f'size/{side}') for side in sides]
    if noted == stored or None in elements:
        # Where nothing is noted, the loader looks at the image.
        return stored
    fits = all(
        x2 <= stored[0] + box_limits.BORDER_TOLERANCE
        and y2 <= stored[1] + box_limits.BORDER_TOLERANCE
        for x1, y1, x2, y2 in (box.box for box in file.boxes)
        if math.isfinite(x1 + y1)
        and x1 < x2 <= noted[0] + box_limits.BORDER_TOLERANCE
        and y1 < y2 <= noted[1] + box_limits.BORDER_TOLERANCE
    )
    if 'PAIR004' not in draft.rules or not may_change_size(
        noted, stored, fits
    ):
        return None
    for side, element, old, new in zip(sides, elements, noted, stored):
        if old != new:
            draft.write('PAIR004', element, f'size.{side}', new)
    return stored


def _fix_object(
    draft: _Draft,
    element: ElementTree.Element,
    facts: BoxFacts,
    size: tuple[int, int] | None,
) -> bool:
    """Repair the box of an object; whether the object was removed."""
    box, location = facts.box, facts.location
    for rule, wrong in (
        ('DET001', not box_limits.is_finite(box)),
        ('DET002', box_limits.lacks_area(box)),
        ('DET004', size is not None and box_limits.is_outside(box, *size)),
    ):
        if wrong and rule in draft.rules:
            draft.remove(rule, element, location)
        if wrong:
            return rule in draft.rules
    if size is not None and 'DET005' in draft.rules:
        _clip(draft, element, facts, size)
    return False


def _clip(
    draft: _Draft,
    element: ElementTree.Element,
    facts: BoxFacts,
    size: tuple[int, int],
) -> None:
    new = list(facts.box)
    for side, limit in enumerate((1, 1, *size)):
        beyond = new[side] - limit if side >= 2 else limit - new[side]
        # A loader takes 1 off, so that a file that counts from 0 has -1.
        if beyond > box_limits.BORDER_TOLERANCE:
            new[side] = limit
    if new == list(facts.box):
        return
    if new[2] - new[0] < 1 or new[3] - new[1] < 1:
        return
    for corner, old, now in zip(_CORNERS, facts.box, new):
        if now != old:
            draft.write(
                'DET005',
                element.find(f'bndbox/{corner}'),
                f'{facts.location}.bndbox.{corner}',
                now,
            )
