"""Read annotation files in the XML format of Pascal VOC."""

import math
from xml.etree import ElementTree
from xml.parsers import expat

from ..facts import BoxFacts, ErrorKind, ReadError, RecordError, VocFile

_CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')
# Numbers beyond it are not kept: facts hold 64 bits.
_MAX_LENGTH = (1 << 31) - 1


def _parse(content: bytes) -> ElementTree.Element:
    checked = expat.ParserCreate()
    checked.EntityDeclHandler = _refuse_entity
    checked.Parse(content, True)
    return ElementTree.fromstring(content)


def _refuse_entity(name: str, *_: object) -> None:
    raise ValueError(f'<!ENTITY {name}> is refused: it may grow, or be a file')


def read_voc(content: bytes) -> VocFile:
    """Read an annotation file; nothing is raised for damaged files.

    A file that declares entities is refused: they could grow without limit,
    or name files.
    """
    try:
        root = _parse(content)
    # Encodings that are not known, and the refusal above, are among them.
    except (
        ElementTree.ParseError,
        expat.ExpatError,
        LookupError,
        ValueError,
    ) as error:
        return VocFile(error=_corrupt(f'malformed XML: {error}'))
    # The loader goes by what is in it, whatever its name.
    named = root.find('size') is not None or root.find('object') is not None
    if root.tag != 'annotation' and not named:
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
        has_size=root.find('size') is not None,
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
    """A side of the image; the loader reads it if there is a ``<size>``."""
    if root.find('size') is None:
        return 0
    text = root.findtext(f'size/{name}')
    try:
        number = int(text or '')
    except ValueError:
        errors.append(RecordError(f'size.{name}', _no_int(text, 'of pixels')))
        return 0
    if number < 0:
        message = f'is {number}; the loader drops the image from a training'
        errors.append(RecordError(f'size.{name}', message))
    return min(max(number, 0), _MAX_LENGTH)


def _no_int(text: str | None, what: str) -> str:
    """Why the loader's ``int(element.text)`` fails."""
    if text is None:
        return 'is missing, and the loader fails at it'
    if not text.strip():
        return 'is empty, and the loader fails at it'
    wanted = f'a whole number {what}'.strip()
    return f'must be {wanted}, got {text.strip()!r}; the loader fails at it'


def _box(
    element: ElementTree.Element, place: str, errors: list[RecordError]
) -> BoxFacts:
    name = element.findtext('name')
    if name is None:
        message = 'is missing, and the loader fails at it'
        errors.append(RecordError(f'{place}.name', message))
    elif not name.strip():
        message = 'is empty; the loader drops the object without saying so'
        errors.append(RecordError(f'{place}.name', message))
        name = ''
    box, problems = _corners(element, place)
    errors += problems
    return BoxFacts(
        box=box,
        # With its blanks: the loader does not take them away.
        class_name=name or '',
        place=place,
        ignored=_difficult(element, place, errors),
        unreadable=bool(problems),
    )


def _difficult(
    element: ElementTree.Element, place: str, errors: list[RecordError]
) -> bool:
    text = element.findtext('difficult')
    if text is None:
        return False
    try:
        return bool(int(text))
    except ValueError:
        message = _no_int(text, '')
        errors.append(RecordError(f'{place}.difficult', message))
        return False


def _corners(
    element: ElementTree.Element, place: str
) -> tuple[tuple[float, ...], list[RecordError]]:
    numbers, errors = [], []
    for corner in _CORNERS:
        text = _text(element, f'bndbox/{corner}')
        number = _number(text)
        where = f'{place}.bndbox.{corner}'
        if not text:
            message = 'is missing, and the loader fails at it'
            errors.append(RecordError(where, message))
        elif math.isnan(number) and text.lower() != 'nan':
            message = f'must be a number, got {text!r}; the loader fails at it'
            errors.append(RecordError(where, message))
        numbers.append(number)
    return tuple(numbers), errors


def _number(text: str) -> float:
    """The number that a text stands for, NaN if none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
