"""Read label files in YOLO's form."""

from collections.abc import Sequence

from ....datasets import read_yolo_labels
from ..facts import BoxFacts, ErrorKind, ReadError, RecordError, YoloFile


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
            RecordError(f'line {each.line}', each.message)
            for each in problems
            if each.kind == kind
        )
        for kind in ('form', 'range')
    )
    wrong = {each.line for each in problems}
    text = '; '.join(f'{error.place}: {error.message}' for error in form)
    return YoloFile(
        boxes=tuple(
            BoxFacts(
                box=each.box,
                label=each.label,
                place=f'line {each.line}',
                unreadable=each.line in wrong,
            )
            for each in boxes
        ),
        error=ReadError(ErrorKind.CORRUPT, text) if form else None,
        errors=form,
        range=outside,
    )
