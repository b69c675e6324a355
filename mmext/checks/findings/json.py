"""Findings and reports as JSON."""

import re
from typing import Any, TypeVar

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
