"""Read annotation files in the XML format of Pascal VOC."""

import math
from xml.etree import ElementTree

from ..facts import BoxFacts, ErrorKind, ReadError, RecordError, VocFile

__all__ = [
    'read_voc',
]

_CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')


class _NoDoctype(ElementTree.TreeBuilder):
    """Refuses what may declare entities, before any is read."""

    def doctype(self, name: str, pubid: str, system: str) -> None:
        raise ValueError(
            f'<!DOCTYPE {name}> is refused, as it may declare entities'
        )


def read_voc(content: bytes) -> VocFile:
    """Read an annotation file; nothing is raised for damaged files.

    A file with a DOCTYPE is refused: entities could grow without limit, or
    name files.
    """
    try:
        parser = ElementTree.XMLParser(target=_NoDoctype())
        root = ElementTree.fromstring(content, parser)
    except ElementTree.ParseError as error:
        return VocFile(error=_corrupt(f'malformed XML: {error}'))
    # Encodings that are not known, and the refusal above.
    except (LookupError, ValueError) as error:
        return VocFile(error=_corrupt(f'malformed XML: {error}'))
    if root.tag != 'annotation':
        text = f'the root element must be <annotation>, got <{root.tag}>'
        return VocFile(error=_corrupt(text))
    errors: list[RecordError] = []
    boxes = tuple(
        _box(element, f'object[{index}]', errors)
        for index, element in enumerate(root.iterfind('object'))
    )
    width = _length(root, 'width', errors)
    height = _length(root, 'height', errors)
    text = '; '.join(f'{error.place} {error.message}' for error in errors)
    return VocFile(
        image=_text(root, 'filename'),
        width=width,
        height=height,
        boxes=boxes,
        error=_corrupt(text) if errors else None,
        errors=tuple(errors),
    )


def _corrupt(text: str) -> ReadError:
    return ReadError(ErrorKind.CORRUPT, text)


def _text(element: ElementTree.Element, path: str) -> str:
    return (element.findtext(path) or '').strip()


def _length(
    root: ElementTree.Element, name: str, errors: list[RecordError]
) -> int:
    text = _text(root, f'size/{name}')
    if not text:
        return 0
    number = _number(text)
    if not 0 <= number < 1 << 31 or number != int(number):
        message = f'must be a number of pixels, got {text!r}'
        errors.append(RecordError(f'size.{name}', message))
        return 0
    return int(number)


def _box(
    element: ElementTree.Element, place: str, errors: list[RecordError]
) -> BoxFacts:
    name = _text(element, 'name')
    if not name:
        errors.append(RecordError(f'{place}.name', 'is missing'))
    difficult = _text(element, 'difficult') or '0'
    if difficult not in ('0', '1'):
        message = f'must be 0 or 1, got {difficult!r}'
        errors.append(RecordError(f'{place}.difficult', message))
    box, problems = _corners(element, place)
    errors += problems
    return BoxFacts(
        box=box,
        class_name=name,
        place=place,
        ignored=difficult == '1',
        unreadable=bool(problems),
    )


def _corners(
    element: ElementTree.Element, place: str
) -> tuple[tuple[float, ...], list[RecordError]]:
    numbers, errors = [], []
    for corner in _CORNERS:
        text = _text(element, f'bndbox/{corner}')
        number = _number(text)
        where = f'{place}.bndbox.{corner}'
        if not text:
            errors.append(RecordError(where, 'is missing'))
        elif math.isnan(number) and text.lower() != 'nan':
            message = f'must be a number, got {text!r}'
            errors.append(RecordError(where, message))
        numbers.append(number)
    return tuple(numbers), errors


def _number(text: str) -> float:
    """The number that a text stands for, NaN if none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
