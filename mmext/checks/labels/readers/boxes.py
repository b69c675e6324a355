"""Read the label file of one image: XML of Pascal VOC, or lines of YOLO."""

import math
from collections.abc import Sequence
from xml.etree import ElementTree
from xml.parsers import expat

from ....datasets import read_yolo_labels
from ..facts import (
    BoxFacts,
    ErrorKind,
    ReadError,
    RecordError,
    VocFile,
    YoloFile,
)

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
    text = '; '.join(f'{error.location} {error.message}' for error in errors)
    return VocFile(
        image=(root.findtext('filename') or '').strip(),
        width=width,
        height=height,
        has_size=root.find('size') is not None,
        boxes=boxes,
        error=_corrupt(text) if errors else None,
        errors=tuple(errors),
    )


def _corrupt(text: str) -> ReadError:
    return ReadError(ErrorKind.CORRUPT, text)


def _length(
    root: ElementTree.Element, name: str, errors: list[RecordError]
) -> int:
    """A side of the image; the loader reads it if there is a ``<size>``."""
    if root.find('size') is None:
        return 0
    path, location = f'size/{name}', f'size.{name}'
    number = _number(root, path, 'a whole number of pixels', location, errors)
    if number < 0:
        message = f'is {number}; the loader drops the image from a training'
        errors.append(RecordError(location, message))
    return min(max(number, 0), _MAX_LENGTH)


def _number(
    element: ElementTree.Element,
    path: str,
    wanted: str,
    location: str,
    errors: list[RecordError],
    kind: type = int,
) -> float:
    """A number as the loader reads it; 0 or NaN, with an error, if none."""
    text = element.findtext(path)
    try:
        return kind(text or '')
    except ValueError:
        if text is None:
            problem = 'is missing, and'
        elif not text.strip():
            problem = 'is empty, and'
        else:
            problem = f'must be {wanted}, got {text.strip()!r};'
        errors.append(
            RecordError(location, f'{problem} the loader fails at it')
        )
        return 0 if kind is int else math.nan


def _box(
    element: ElementTree.Element, location: str, errors: list[RecordError]
) -> BoxFacts:
    name = element.findtext('name')
    if name is None:
        message = 'is missing, and the loader fails at it'
        errors.append(RecordError(f'{location}.name', message))
    elif not name.strip():
        message = 'is empty; the loader drops the object without saying so'
        errors.append(RecordError(f'{location}.name', message))
        name = ''
    before = len(errors)
    corners = tuple(
        _number(
            element,
            f'bndbox/{corner}',
            'a number',
            f'{location}.bndbox.{corner}',
            errors,
            float,
        )
        for corner in _CORNERS
    )
    unreadable = len(errors) > before
    difficult = 0
    if element.find('difficult') is not None:
        where = f'{location}.difficult'
        difficult = _number(
            element, 'difficult', 'a whole number', where, errors
        )
    return BoxFacts(
        box=corners,
        # With its blanks: the loader does not take them away.
        class_name=name or '',
        location=location,
        ignored=bool(difficult),
        unreadable=unreadable,
    )


def read_yolo(content: bytes, kpt_shape: Sequence[int] = ()) -> YoloFile:
    """Read a label file; nothing is raised for damaged files."""
    try:
        text = content.decode('utf-8')
    except UnicodeDecodeError as error:
        return YoloFile(
            error=ReadError(ErrorKind.CORRUPT, f'is no text: {error}')
        )
    boxes, problems = read_yolo_labels(text, kpt_shape)
    form, outside = (
        tuple(
            RecordError(f'line {problem.line}', problem.message)
            for problem in problems
            if problem.kind == kind
        )
        for kind in ('form', 'range')
    )
    wrong = {problem.line for problem in problems}
    text = '; '.join(f'{error.location}: {error.message}' for error in form)
    return YoloFile(
        boxes=tuple(
            BoxFacts(
                box=problem.box,
                label=problem.label,
                location=f'line {problem.line}',
                unreadable=problem.line in wrong,
            )
            for problem in boxes
        ),
        error=ReadError(ErrorKind.CORRUPT, text) if form else None,
        errors=form,
        range=outside,
    )
