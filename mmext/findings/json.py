"""Findings and reports as JSON."""

from typing import Any, TypeVar

import msgspec

from .finding import Finding

__all__ = [
    'as_record',
    'to_json',
]

_Record = TypeVar('_Record', bound=msgspec.Struct)


def as_record(finding: Finding, record: type[_Record]) -> _Record:
    """What the JSON form of a tool holds of a finding.

    Args:
        finding: Any.
        record: Its fields are fields or properties of the finding.
    """
    names = record.__struct_fields__
    return record(**{name: getattr(finding, name) for name in names})


def to_json(value: Any) -> bytes:
    """UTF-8 with two blanks of indent and a newline at the end.

    Numbers that JSON does not have become null.
    """
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b'\n'
