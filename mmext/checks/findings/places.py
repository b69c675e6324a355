"""All places of all findings, one a line: as JSON Lines or CSV."""

import csv
import io
from collections.abc import Callable
from typing import IO, Any

from .finding import Finding
from .json import readable, to_json_line

_FIELDS = ('rule', 'split', 'file', 'line')
_MORE_FIELDS = ('value', 'count', 'message', 'remedy')
_NAMES = ('severity', *_FIELDS, 'place', *_MORE_FIELDS, 'related')


def _row(finding: Finding) -> dict[str, Any]:
    related = [
        ': '.join(filter(None, (other.file, other.place)))
        for other in finding.related
    ]
    return {
        'severity': finding.severity.noun,
        **{name: getattr(finding, name) for name in _FIELDS},
        'place': finding.location.place,
        **{name: getattr(finding, name) for name in _MORE_FIELDS},
        'related': related,
    }


def place_writer(file: IO[bytes], form: str) -> Callable[[Finding], None]:
    """A function that writes a finding as a line of a file.

    Each line has the severity (``'error'``, ``'warning'`` or ``'note'``),
    ``place`` for where in the file it is (``'y=3, x=5'``), ``related`` for
    other places that belong to it, and fields of :class:`Finding`.

    Args:
        file: Where to, in UTF-8; names of files are made
            :func:`~mmext.checks.findings.json.readable`.
        form: ``'jsonl'``: a JSON object each; or ``'csv'``: the same with a
            line of names first, ``related`` being divided by newlines.
    """

    def write_cells(cells: list[str]) -> None:
        text = io.StringIO(newline='')
        csv.writer(text, lineterminator='\n').writerow(cells)
        file.write(readable(text.getvalue()).encode())

    def write_json(finding: Finding) -> None:
        file.write(to_json_line(_row(finding)) + b'\n')

    def write_csv(finding: Finding) -> None:
        *cells, related = _row(finding).values()
        write_cells([*cells, '\n'.join(related)])

    if form == 'jsonl':
        return write_json
    write_cells(list(_NAMES))
    return write_csv
