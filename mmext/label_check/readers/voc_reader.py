"""Read annotation files in the XML format of Pascal VOC."""

import math
from collections.abc import Iterator
from xml.etree import ElementTree

from ..facts import BoxFacts, VocFile

__all__ = ['read_voc']

_CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')


class _NoDoctype(ElementTree.TreeBuilder):
    """Refuses what may declare entities, before any is read."""

    def doctype(self, name: str, pubid: str, system: str) -> None:
        raise ValueError(
            f'<!DOCTYPE {name}> is refused, as it may declare entities'
        )


def read_voc(content: bytes) -> VocFile:
    """Read an annotation file.

    Args:
        content: Bytes of the file.

    Returns:
        What is known; nothing is raised for damaged files. A file with a
        DOCTYPE is refused: entities could grow without limit, or name files.

    Examples:
        >>> read_voc(b'<annotation><size>').error
        'malformed XML: no element found: line 1, column 18'
    """
    try:
        parser = ElementTree.XMLParser(target=_NoDoctype())
        root = ElementTree.fromstring(content, parser)
    except ElementTree.ParseError as error:
        return VocFile(error=f'malformed XML: {error}')
    # Encodings that are not known, and the refusal above.
    except (LookupError, ValueError) as error:
        return VocFile(error=f'malformed XML: {error}')
    if root.tag != 'annotation':
        return VocFile(
            error=f'the root element must be <annotation>, got <{root.tag}>'
        )
    errors: list[str] = []
    boxes = tuple(
        _box(element, f'object[{index}]', errors)
        for index, element in enumerate(root.iterfind('object'))
    )
    return VocFile(
        image=_text(root, 'filename'),
        width=_length(root, 'width', errors),
        height=_length(root, 'height', errors),
        boxes=boxes,
        error='; '.join(errors),
    )


def _text(element: ElementTree.Element, path: str) -> str:
    return (element.findtext(path) or '').strip()


def _length(root: ElementTree.Element, name: str, errors: list[str]) -> int:
    text = _text(root, f'size/{name}')
    if not text:
        return 0
    number = _number(text)
    if not 0 <= number < 1 << 31 or number != int(number):
        errors.append(f'size.{name} must be a number of pixels, got {text!r}')
        return 0
    return int(number)


def _box(
    element: ElementTree.Element, place: str, errors: list[str]
) -> BoxFacts:
    name = _text(element, 'name')
    if not name:
        errors.append(f'{place}.name is missing')
    difficult = _text(element, 'difficult') or '0'
    if difficult not in ('0', '1'):
        errors.append(f'{place}.difficult must be 0 or 1, got {difficult!r}')
    return BoxFacts(
        box=tuple(_corners(element, place, errors)),
        class_name=name,
        place=place,
        ignored=difficult == '1',
    )


def _corners(
    element: ElementTree.Element, place: str, errors: list[str]
) -> Iterator[float]:
    for corner in _CORNERS:
        text = _text(element, f'bndbox/{corner}')
        number = _number(text)
        if not text:
            errors.append(f'{place}.bndbox.{corner} is missing')
        elif math.isnan(number) and text.lower() != 'nan':
            errors.append(
                f'{place}.bndbox.{corner} must be a number, got {text!r}'
            )
        yield number


def _number(text: str) -> float:
    """The number that a text stands for, NaN if none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
