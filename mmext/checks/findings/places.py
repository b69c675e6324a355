"""All places of all findings, one a line: as JSON Lines or CSV."""

import csv
import io
from collections.abc import Callable
from typing import IO

import msgspec

from .finding import Finding, Location
from .json import readable, to_json_line
from .terminal import severity_noun


class PlaceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A place of a finding.

    Attributes:
        severity: ``'error'``, ``'warning'`` or ``'note'``.
        rule: Stable id.
        split: ``'train'``, ``'val'``, ...; empty for all.
        file: As the data set or the config names it; empty for all of it.
        line: Of the file, from 1; 0 if not known.
        place: Where in the file: ``'y=3, x=5'``, ``'annotations[4].bbox'``.
        value: The value that is wrong, as text.
        count: Pixels, boxes or files that it is about.
        message: One sentence with the facts.
        remedy: What to do about it.
        related: Other places that belong to it.
    """

    severity: str
    rule: str
    split: str
    file: str
    line: int
    place: str
    value: str
    count: int
    message: str
    remedy: str
    related: tuple[str, ...]


def _words(location: Location) -> str:
    return ': '.join(filter(None, (location.file, location.place)))


def _record(finding: Finding) -> PlaceRecord:
    return PlaceRecord(
        severity=severity_noun(finding.severity),
        rule=finding.rule,
        split=finding.split,
        file=finding.file,
        line=finding.line,
        place=finding.location.place,
        value=finding.value,
        count=finding.count,
        message=finding.message,
        remedy=finding.remedy,
        related=tuple(map(_words, finding.related)),
    )


def place_writer(file: IO[bytes], form: str) -> Callable[[Finding], None]:
    """A function that writes a finding as a line of a file.

    Args:
        file: Where to, in UTF-8; names of files are made
            :func:`~mmext.checks.findings.json.readable`.
        form: ``'jsonl'``: a JSON object each, fields as of
            :class:`PlaceRecord`; or ``'csv'``: the same with a line of
            names first, ``related`` being divided by newlines.
    """

    def line(cells: list[str]) -> None:
        text = io.StringIO(newline='')
        csv.writer(text, lineterminator='\n').writerow(cells)
        file.write(readable(text.getvalue()).encode())

    def write_json(finding: Finding) -> None:
        file.write(to_json_line(_record(finding)) + b'\n')

    def write_csv(finding: Finding) -> None:
        cells = msgspec.structs.asdict(_record(finding))
        cells['related'] = '\n'.join(cells['related'])
        line(list(cells.values()))

    if form == 'jsonl':
        return write_json
    line(list(PlaceRecord.__struct_fields__))
    return write_csv
