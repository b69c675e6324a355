"""Repair an annotation file in the XML format of Pascal VOC."""

import math
from collections.abc import Container, Iterator, Sequence

from ..facts import BoxFacts, ImageFacts, VocFile
from ..readers.voc_reader import read_voc
from ..rules._unreadable import has_size
from ._coco_sizes import NotedSize, why_size_stays
from ._xml_places import XmlEdit, XmlElement, find_elements
from .change_log import Change, FixedFile, Left

__all__ = ['VOC_RULES', 'fix_voc']

VOC_RULES = frozenset(
    ('DET001', 'DET002', 'DET004', 'DET005', 'DET010', 'PAIR004')
)
_CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')
_SLACK = 1
_QUARTER_TURNS = (5, 6, 7, 8)


class _Draft:
    """A file while it is repaired."""

    def __init__(self, content: bytes, rules: Container[str]):
        self.content = content
        self.rules = rules
        self.root = find_elements(content)
        self.edit = XmlEdit(content)
        self.changes: list[Change] = []
        self.left: list[Left] = []

    def objects(self) -> Iterator[XmlElement]:
        """As :func:`read_voc` numbers them."""
        path = f'{self.root.path}/object'
        return (each for each in self.root.children if each.path == path)

    def leave(self, rule: str, place: str, reason: str) -> None:
        """Say what is not repaired."""
        if rule in self.rules:
            self.left.append(Left(rule=rule, place=place, reason=reason))

    def remove(self, rule: str, element: XmlElement, place: str, why: str):
        """Take an object out."""
        was = self.content[element.begin : element.end]
        self.edit.remove(element)
        self.changes = [
            each
            for each in self.changes
            if not each.place.startswith(f'{place}.')
        ]
        self.changes.append(
            Change(
                rule=rule,
                place=place,
                was=was.decode(errors='replace'),
                reason=why,
            )
        )

    def set_number(
        self, rule: str, element: XmlElement, place: str, new: int, why: str
    ) -> None:
        """Write another number."""
        self.edit.set_text(element, str(new))
        self.changes.append(
            Change(
                rule=rule,
                place=place,
                was=element.text.strip(),
                now=str(new),
                reason=why,
            )
        )
        element.text = str(new)


def fix_voc(
    content: bytes,
    image: ImageFacts | None = None,
    *,
    rules: Container[str] = VOC_RULES,
) -> FixedFile:
    """Repair an annotation file.

    Pixels are counted from 1 in these files, and a box includes its last
    one; a loader that takes 1 off finds the same boxes right.

    Args:
        content: Bytes of the file.
        image: Facts of its image; None if they are not known.
        rules: Ids of rules whose findings are repaired.

    Returns:
        The file; what is not repaired, comments and blanks among it, has
        the bytes that it had. A file that cannot be read in all its parts
        is left as it is.
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
    for number, (element, box) in enumerate(zip(draft.objects(), file.boxes)):
        if not _fix_object(draft, element, box, size, image):
            _drop_repeated(draft, element, number, seen)
    return FixedFile(
        content=draft.edit.render(),
        changes=tuple(draft.changes),
        left=tuple(draft.left),
    )


def _fix_size(
    draft: _Draft, file: VocFile, image: ImageFacts | None
) -> tuple[int, int] | None:
    """The size that boxes are held against; None if it is not certain."""
    noted = file.width, file.height
    if not has_size(image):
        return noted if all(noted) else None
    stored = image.width, image.height
    if image.orientation in _QUARTER_TURNS:
        return None
    if noted == stored:
        return stored
    elements = [
        draft.root.find(f'size/{side}') for side in ('width', 'height')
    ]
    if None in elements:
        # Nothing is noted, so the loader looks at the image.
        return stored
    fits = all(
        x2 <= stored[0] + _SLACK and y2 <= stored[1] + _SLACK
        for x1, y1, x2, y2 in (each.box for each in file.boxes)
        if math.isfinite(x1 + y1)
        and x1 < x2 <= noted[0] + _SLACK
        and y1 < y2 <= noted[1] + _SLACK
    )
    why = why_size_stays(NotedSize(noted, stored), fits)
    if why or 'PAIR004' not in draft.rules:
        draft.leave('PAIR004', 'size', why)
        return None
    for element, old, new in zip(elements, noted, stored):
        if old != new:
            place = element.path.partition('/')[2].replace('/', '.')
            draft.set_number(
                'PAIR004', element, place, new, 'the size of the image file'
            )
    return stored


def _fix_object(
    draft: _Draft,
    element: XmlElement,
    facts: BoxFacts,
    size: tuple[int, int] | None,
    image: ImageFacts | None,
) -> bool:
    """Repair the box of an object; whether the object was removed."""
    x1, y1, x2, y2 = box = facts.box
    rule = why = ''
    if not all(map(math.isfinite, box)):
        rule, why = 'DET001', 'the box is not finite'
    elif x2 <= x1 or y2 <= y1:
        rule, why = 'DET002', 'the box has no area'
    elif size is not None and _is_outside(box, size):
        rule, why = 'DET004', 'it is outside of the image'
    if rule in draft.rules:
        draft.remove(rule, element, facts.place, why)
        return True
    if rule:
        return False
    if size is None and has_size(image):
        stored = image.width, image.height
        beyond = max(x2 - stored[0], y2 - stored[1], -x1, -y1) > _SLACK
        outside = _is_outside(box, stored)
        if beyond or outside:
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


def _is_outside(box: Sequence[float], size: tuple[int, int]) -> bool:
    x1, y1, x2, y2 = box
    return x1 >= size[0] or y1 >= size[1] or x2 <= 0 or y2 <= 0


def _clip(
    draft: _Draft, element: XmlElement, facts: BoxFacts, size: tuple[int, int]
) -> None:
    limits = (1, 1, *size)
    new = list(facts.box)
    for side in range(4):
        beyond = facts.box[side] - limits[side]
        # A loader takes 1 off, so that a file that counts from 0 has -1.
        if beyond < -_SLACK if side < 2 else beyond > _SLACK:
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


def _drop_repeated(
    draft: _Draft, element: XmlElement, number: int, seen: dict[tuple, int]
) -> None:
    """Remove an object that is, in all it says, one before it."""
    if 'DET010' not in draft.rules:
        return
    first = seen.setdefault(_said(element), number)
    if first != number:
        draft.remove(
            'DET010',
            element,
            f'object[{number}]',
            f'object[{first}] is the same',
        )


def _said(element: XmlElement) -> tuple:
    """Names and texts of an element and all in it."""
    return (
        element.path,
        element.text.strip(),
        tuple(map(_said, element.children)),
    )
