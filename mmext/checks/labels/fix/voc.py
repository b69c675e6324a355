"""Repair an annotation file in Pascal VOC's XML format: parse, edit, dump."""

import math
import re
from collections.abc import Container
from xml.etree import ElementTree

from ....datasets import box_limits
from ..facts import BoxFacts, ImageFacts, VocFile, has_size, is_turned
from ..readers.voc import read_voc
from ..rules.registry import fixable
from .change_log import Change, FixedFile, Left
from .geometry import why_size_stays

VOC_RULES = fixable('voc')
# Encodings in which ASCII is not ASCII: what is before the root is not found.
_WIDE_MARKS = (b'\xff\xfe', b'\xfe\xff', b'<\x00', b'\x00<')
_BEFORE_ROOT = re.compile(
    rb'(\xef\xbb\xbf)?'
    rb'(\s+|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^[>]*(\[.*?\]\s*)?>)*',
    re.DOTALL,
)
_ENCODING = re.compile(rb"""encoding\s*=\s*["']([\w.-]+)""")
_BLANKS = ' \t\r\n'
_CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')


class _Draft:
    """A file while it is repaired, through the tree of its root element."""

    def __init__(self, content: bytes, rules: Container[str]):
        # Not lxml: the reader has accepted the file with the same parser.
        builder = ElementTree.TreeBuilder(
            insert_comments=True, insert_pis=True
        )
        parser = ElementTree.XMLParser(target=builder)
        self.root = ElementTree.fromstring(content, parser)
        self.rules = rules
        self.changes: list[Change] = []
        self.left: list[Left] = []

    def leave(self, rule: str, reason: str) -> None:
        """Say what is not repaired."""
        if rule in self.rules:
            self.left.append(Left(rule=rule, reason=reason))

    def remove(
        self, rule: str, element: ElementTree.Element, place: str, why: str
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
        self.changes.append(
            Change(rule=rule, place=place, was=was, reason=why)
        )

    def write(
        self,
        rule: str,
        element: ElementTree.Element,
        place: str,
        number: int,
        why: str,
    ) -> None:
        """Write another number."""
        was, now = _text(element), str(number)
        del element[:]
        element.text = now
        self.changes.append(
            Change(rule=rule, place=place, was=was, now=now, reason=why)
        )

    def dump(self, old: bytes) -> bytes:
        """The file as it is now, in the encoding and with what began it."""
        begin = _BEFORE_ROOT.match(old)[0]
        text = ElementTree.tostring(self.root, encoding='unicode')
        if b'\r\n' in old:
            text = text.replace('\n', '\r\n')
        declared = _ENCODING.search(begin)
        encoding = declared[1].decode() if declared else 'utf-8'
        end = old[len(old.rstrip()) :]
        return begin + text.encode(encoding, 'xmlcharrefreplace') + end


def _text(element: ElementTree.Element) -> str:
    """Text of an element, without that of elements and comments in it."""
    tails = (child.tail or '' for child in element)
    return ''.join((element.text or '', *tails)).strip()


def fix_voc(
    content: bytes,
    image: ImageFacts | None = None,
    *,
    rules: Container[str] = VOC_RULES,
) -> FixedFile:
    """Repair an annotation file.

    Pixels are counted from 1 in these files, and a box includes its last
    one; a loader that takes 1 off finds the same boxes right.

    What is repaired keeps its encoding, all before the root element, and in
    it comments, blanks and line ends; CDATA becomes text with escapes,
    ``'x'`` of attributes ``"x"``, and ``<a/>`` ``<a />``.
    """
    file = read_voc(content)
    if file.error:
        return FixedFile(content=content)
    if content.startswith(_WIDE_MARKS):
        reason = (
            'it cannot be edited: its encoding has more than a byte for each '
            'letter'
        )
        left = Left(rule='VOC002', reason=reason)
        return FixedFile(content=content, left=(left,))
    draft = _Draft(content, rules)
    size = _fix_size(draft, file, image)
    seen: dict[tuple, int] = {}
    objects = draft.root.findall('object')
    for number, (element, box) in enumerate(zip(objects, file.boxes)):
        before = len(draft.changes)
        if _fix_object(draft, element, box, size, image):
            continue
        first = seen.setdefault(_said(element), number)
        if first != number and 'DET010' in rules:
            del draft.changes[before:]
            why = f'object[{first}] is the same'
            draft.remove('DET010', element, box.place, why)
    return FixedFile(
        content=draft.dump(content) if draft.changes else content,
        changes=tuple(draft.changes),
        left=tuple(draft.left),
    )


def _said(element: ElementTree.Element) -> tuple:
    """Names and texts of an element and all in it."""
    children = (child for child in element if isinstance(child.tag, str))
    return element.tag, _text(element), tuple(map(_said, children))


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
    why = why_size_stays(noted, stored, fits)
    if why or 'PAIR004' not in draft.rules:
        draft.leave('PAIR004', why)
        return None
    why = 'the size of the image file'
    for side, element, old, new in zip(sides, elements, noted, stored):
        if old != new:
            draft.write('PAIR004', element, f'size.{side}', new, why)
    return stored


def _fix_object(
    draft: _Draft,
    element: ElementTree.Element,
    facts: BoxFacts,
    size: tuple[int, int] | None,
    image: ImageFacts | None,
) -> bool:
    """Repair the box of an object; whether the object was removed."""
    box, place = facts.box, facts.place
    for rule, wrong, why in (
        ('DET001', not box_limits.is_finite(box), 'the box is not finite'),
        ('DET002', box_limits.lacks_area(box), 'the box has no area'),
        (
            'DET004',
            size is not None and box_limits.is_outside(box, *size),
            'it is outside of the image',
        ),
    ):
        if wrong and rule in draft.rules:
            draft.remove(rule, element, place, why)
        if wrong:
            return rule in draft.rules
    if size is not None:
        if 'DET005' in draft.rules:
            _clip(draft, element, facts, size)
    elif has_size(image):
        stored = image.width, image.height
        outside = box_limits.is_outside(box, *stored)
        if outside or box_limits.is_beyond(box, *stored):
            why = 'the size of the image is not certain'
            draft.leave('DET004' if outside else 'DET005', why)
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
        reason = 'less than a pixel of it is in the image'
        draft.leave('DET005', reason)
        return
    for corner, old, now in zip(_CORNERS, facts.box, new):
        if now != old:
            draft.write(
                'DET005',
                element.find(f'bndbox/{corner}'),
                f'{facts.place}.bndbox.{corner}',
                now,
                f'cut at the border of the image, {size[0]} x {size[1]}',
            )
