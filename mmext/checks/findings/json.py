"""Findings and reports as JSON, JSON Lines and CSV."""

import csv
import io
import re
from collections.abc import Callable
from typing import IO, Any, TypeVar

import msgspec

from .finding import Finding

_SURROGATE = re.compile('[\ud800-\udfff]')

_Record = TypeVar('_Record', bound=msgspec.Struct)


def as_record(finding: Finding, record: type[_Record]) -> _Record:
    """What the JSON form of a tool holds of a finding.

    Args:
        finding: Any.
        record: Its fields are fields or properties of the finding.
    """
    names = record.__struct_fields__
    return record(**{name: getattr(finding, name) for name in names})


def _escaped(match: re.Match) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:
        return f'\\x{code - 0xDC00:02x}'
    return f'\\u{code:04x}'


def readable(text: str) -> str:
    r"""Text that can be written as UTF-8.

    Names of files are bytes; one that is no UTF-8 is shown as ``\xff``.
    """
    return _SURROGATE.sub(_escaped, text)


def _all_readable(value: Any) -> Any:
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, dict):
        return {
            _all_readable(key): _all_readable(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_all_readable(item) for item in value]
    return value


def to_json_line(value: Any) -> bytes:
    """UTF-8 without a newline.

    Numbers that JSON does not have become null, texts are made
    :func:`readable`.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        builtins = msgspec.to_builtins(value, str_keys=True)
        return msgspec.json.encode(_all_readable(builtins))


def to_json(value: Any) -> bytes:
    """As :func:`to_json_line`, with two blanks of indent and a newline."""
    return msgspec.json.format(to_json_line(value), indent=2) + b'\n'


# All locations of all findings, one a line ----------------------------------

_FIELDS = ('rule', 'split', 'file', 'line')
_MORE_FIELDS = ('value', 'count', 'message', 'remedy')
_NAMES = ('severity', *_FIELDS, 'position', *_MORE_FIELDS, 'related')


def _row(finding: Finding) -> dict[str, Any]:
    related = [
        ': '.join(filter(None, (other.file, other.position)))
        for other in finding.related
    ]
    return {
        'severity': finding.severity.noun,
        **{name: getattr(finding, name) for name in _FIELDS},
        'position': finding.location.position,
        **{name: getattr(finding, name) for name in _MORE_FIELDS},
        'related': related,
    }


def location_writer(file: IO[bytes], form: str) -> Callable[[Finding], None]:
    """A function that writes a finding as a line of a file.

    Each line has the severity (``'error'``, ``'warning'`` or ``'note'``),
    ``location`` for where in the file it is (``'y=3, x=5'``), ``related`` for
    other locations that belong to it, and fields of :class:`Finding`.

    Args:
        file: Where to, in UTF-8; names of files are made
            :func:`readable`.
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
