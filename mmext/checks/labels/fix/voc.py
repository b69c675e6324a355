"""Fix an annotation file in Pascal VOC's XML format: parse, edit, dump."""

from collections.abc import Container
from xml.etree import ElementTree

from ....datasets import box_limits
from ..facts import ImageFacts, has_size, is_turned
from ..readers.boxes import read_voc
from ..rules.registry import RULES
from . import Change, FixedFile

_BLANKS = ' \t\r\n'


def fix_voc(
    content: bytes,
    image: ImageFacts | None = None,
    *,
    rules: Container[str] = RULES,
) -> FixedFile:
    """Fix an annotation file; it keeps its indentation, and loses comments.

    ``'PAIR004'`` among the rules is for splits in which the sizes of all
    images are exchanged.
    """
    file = read_voc(content)
    if file.error:
        return FixedFile(content=content)
    # Not lxml: the reader has accepted the file with the same parser.
    root = ElementTree.fromstring(content)
    changes: list[Change] = []
    noted = file.width, file.height
    rule = 'PAIR004' if all(noted) else 'VOC004'
    if (
        file.has_size
        and rule in rules
        and has_size(image)
        and not is_turned(image)
        and noted != (image.width, image.height)
    ):
        root.find('size/width').text = str(image.width)
        root.find('size/height').text = str(image.height)
        was, now = (
            f'{width} x {height}'
            for width, height in (noted, (image.width, image.height))
        )
        changes.append(Change(rule=rule, location='size', was=was, now=now))
    gone = set()
    for element, facts in zip(root.findall('object'), file.boxes):
        x1, y1, x2, y2 = facts.box
        rule = 'DET002' if box_limits.is_finite(facts.box) else 'DET001'
        flat = x1 == x2 or y1 == y2
        if rule in rules and (flat or rule == 'DET001'):
            gone.add(element)
            was = ElementTree.tostring(element, encoding='unicode').strip()
            changes.append(Change(rule=rule, location=facts.location, was=was))
    if not changes:
        return FixedFile(content=content)
    _remove(root, gone)
    # Of two bytes for each letter, one is zero.
    declared = b'<?xml' in content[:64].replace(b'\0', b'')
    new = ElementTree.tostring(
        root, encoding='utf-8', xml_declaration=declared
    )
    return FixedFile(content=new + b'\n', changes=tuple(changes))


def _remove(
    root: ElementTree.Element, gone: Container[ElementTree.Element]
) -> None:
    """Take children out, and the blanks and line ends before them."""
    kept: list[ElementTree.Element] = []
    for element in root:
        if element not in gone:
            kept.append(element)
        elif kept:
            before = (kept[-1].tail or '').rstrip(_BLANKS)
            kept[-1].tail = before + (element.tail or '')
        else:
            before = (root.text or '').rstrip(_BLANKS)
            root.text = before + (element.tail or '')
    root[:] = kept
