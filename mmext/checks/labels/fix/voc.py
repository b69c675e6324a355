"""Repair an annotation file in the XML format of Pascal VOC."""

import math
import re
from collections.abc import Container, Sequence
from xml.etree import ElementTree
from xml.parsers import expat

from ....datasets import box_limits
from ..facts import BoxFacts, ImageFacts, VocFile, has_size, is_turned
from ..readers.voc import read_voc
from ..rules.registry import fixable
from .change_log import Change, FixedFile, Left
from .geometry import why_size_stays

# Encodings in which ASCII is not ASCII: the ends of the root are not found.
_WIDE_MARKS = (b'\xff\xfe', b'\xfe\xff', b'<\x00', b'\x00<')
_ENCODING = re.compile(rb"""encoding\s*=\s*["']([\w.-]+)""")
_BLANKS = ' \t\r\n'


class XmlFile:
    """A file that is changed through its ``root``, an element tree.

    What stands before and after the root keeps its bytes. In the root,
    comments, processing instructions, blanks and line ends stay; CDATA
    becomes text with escapes, ``'x'`` of attributes ``"x"``, and ``<a/>``
    ``<a />``.
    """

    def __init__(self, content: bytes):
        if content.startswith(_WIDE_MARKS):
            raise ValueError(
                'its encoding has more than a byte for each letter'
            )
        builder = ElementTree.TreeBuilder(
            insert_comments=True, insert_pis=True
        )
        parser = ElementTree.XMLParser(target=builder)
        self.root = ElementTree.fromstring(content, parser)
        self._content = content

    def remove(self, element: ElementTree.Element) -> str:
        """Take a child of the root out, and the blanks and line end before."""
        tail, element.tail = element.tail or '', None
        number = list(self.root).index(element)
        if number:
            before = self.root[number - 1]
            before.tail = (before.tail or '').rstrip(_BLANKS) + tail
        else:
            self.root.text = (self.root.text or '').rstrip(_BLANKS) + tail
        self.root.remove(element)
        return ElementTree.tostring(element, encoding='unicode')

    def render(self) -> bytes:
        """The file with all changes, in its encoding."""
        begin, end = self._root_ends()
        head, tail = self._content[:begin], self._content[end:]
        text = ElementTree.tostring(self.root, encoding='unicode')
        if b'\r\n' in self._content:
            text = text.replace('\n', '\r\n')
        declared = _ENCODING.search(head)
        encoding = declared[1].decode() if declared else 'utf-8'
        return head + text.encode(encoding, 'xmlcharrefreplace') + tail

    def _root_ends(self) -> tuple[int, int]:
        """Positions of the first byte of the root, and behind the last."""
        parser = expat.ParserCreate()
        begins: list[int] = []
        ends: list[int] = []
        parser.StartElementHandler = lambda *_: begins.append(
            parser.CurrentByteIndex
        )
        parser.EndElementHandler = lambda _: ends.append(
            parser.CurrentByteIndex
        )
        parser.Parse(self._content, True)
        return begins[0], self._content.index(b'>', ends[-1]) + 1


VOC_RULES = fixable('voc')
_CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')


class _Draft:
    """A file while it is repaired."""

    def __init__(self, content: bytes, rules: Container[str]):
        self.rules = rules
        self.file = XmlFile(content)
        self.changes: list[Change] = []
        self.left: list[Left] = []

    def leave(self, rule: str, place: str, reason: str) -> None:
        """Say what is not repaired."""
        if rule in self.rules:
            self.left.append(Left(rule=rule, place=place, reason=reason))

    def remove(
        self, rule: str, element: ElementTree.Element, place: str, why: str
    ) -> None:
        """Take an object out."""
        was = self.file.remove(element)
        self.changes.append(
            Change(rule=rule, place=place, was=was, reason=why)
        )

    def set_number(
        self,
        rule: str,
        element: ElementTree.Element,
        place: str,
        new: int,
        why: str,
    ) -> None:
        """Write another number."""
        was = _text(element)
        del element[:]
        element.text = str(new)
        self.changes.append(
            Change(rule=rule, place=place, was=was, now=str(new), reason=why)
        )


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
    """
    file = read_voc(content)
    if file.error:
        return FixedFile(content=content)
    try:
        draft = _Draft(content, rules)
    except ValueError as error:
        left = Left(rule='VOC002', reason=f'it cannot be edited: {error}')
        return FixedFile(content=content, left=(left,))
    size = _fix_size(draft, file, image)
    seen: dict[tuple, int] = {}
    objects = draft.file.root.findall('object')
    for number, (element, box) in enumerate(zip(objects, file.boxes)):
        before = len(draft.changes)
        if _fix_object(draft, element, box, size, image):
            continue
        first = seen.setdefault(_said(element), number)
        if first != number and 'DET010' in draft.rules:
            del draft.changes[before:]
            why = f'object[{first}] is the same'
            draft.remove('DET010', element, box.place, why)
    _leave_nearly_repeated(draft, file.boxes)
    return FixedFile(
        content=draft.file.render() if draft.changes else content,
        changes=tuple(draft.changes),
        left=tuple(draft.left),
    )


def _leave_nearly_repeated(draft: _Draft, boxes: Sequence[BoxFacts]) -> None:
    """Say which boxes are those of others but for a pixel or two."""
    for number, box in enumerate(boxes):
        if any(
            box.class_name == other.class_name
            and box.box != other.box
            and box_limits.is_near(box.box, other.box)
            and not (box.ignored or other.ignored)
            for other in boxes[:number]
        ):
            reason = 'it is not known which of two boxes is the better one'
            draft.leave('DET010', box.place, reason)


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
    if noted == stored:
        return stored
    sides = ('width', 'height')
    elements = [draft.file.root.find(f'size/{side}') for side in sides]
    if None in elements:
        # Nothing is noted, so the loader looks at the image.
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
        draft.leave('PAIR004', 'size', why)
        return None
    why = 'the size of the image file'
    for side, element, old, new in zip(sides, elements, noted, stored):
        if old != new:
            draft.set_number('PAIR004', element, f'size.{side}', new, why)
    return stored


def _fix_object(
    draft: _Draft,
    element: ElementTree.Element,
    facts: BoxFacts,
    size: tuple[int, int] | None,
    image: ImageFacts | None,
) -> bool:
    """Repair the box of an object; whether the object was removed."""
    box = facts.box
    rule = why = ''
    if not box_limits.is_finite(box):
        rule, why = 'DET001', 'the box is not finite'
    elif box_limits.lacks_area(box):
        rule, why = 'DET002', 'the box has no area'
    elif size is not None and box_limits.is_outside(box, *size):
        rule, why = 'DET004', 'it is outside of the image'
    if rule in draft.rules:
        draft.remove(rule, element, facts.place, why)
        return True
    if rule:
        return False
    if size is None and has_size(image):
        stored = image.width, image.height
        outside = box_limits.is_outside(box, *stored)
        if outside or box_limits.is_beyond(box, *stored):
            draft.leave(
                'DET004' if outside else 'DET005',
                facts.place,
                'the size of the image is not certain',
            )
    if size is None:
        return False
    if 'DET005' in draft.rules:
        _clip(draft, element, facts, size)
    return False


def _clip(
    draft: _Draft,
    element: ElementTree.Element,
    facts: BoxFacts,
    size: tuple[int, int],
) -> None:
    limits = (1, 1, *size)
    new = list(facts.box)
    for side in range(4):
        beyond = facts.box[side] - limits[side]
        # A loader takes 1 off, so that a file that counts from 0 has -1.
        if (
            beyond < -box_limits.BORDER_TOLERANCE
            if side < 2
            else beyond > box_limits.BORDER_TOLERANCE
        ):
            new[side] = limits[side]
    if new == list(facts.box):
        return
    if new[2] - new[0] < 1 or new[3] - new[1] < 1:
        reason = 'less than a pixel of it is in the image'
        draft.leave('DET005', facts.place, reason)
        return
    for corner, old, now in zip(_CORNERS, facts.box, new):
        if now != old:
            draft.set_number(
                'DET005',
                element.find(f'bndbox/{corner}'),
                f'{facts.place}.bndbox.{corner}',
                now,
                f'cut at the border of the image, {size[0]} x {size[1]}',
            )


def _said(element: ElementTree.Element) -> tuple:
    """Names and texts of an element and all in it."""
    children = (child for child in element if isinstance(child.tag, str))
    return element.tag, _text(element), tuple(map(_said, children))
