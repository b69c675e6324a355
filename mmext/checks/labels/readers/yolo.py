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
