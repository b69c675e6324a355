"""What a check reports: one finding, with the location that it is about."""

from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec


class Severity(IntEnum):
    """How bad a finding is; a larger number is worse."""

    INFO = 0
    WARNING = 1
    ERROR = 2

    @property
    def noun(self) -> str:
        """``'note'``, ``'warning'`` or ``'error'``."""
        return 'note' if self is Severity.INFO else self.name.lower()


class Location(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where something is wrong.

    Attributes:
        file: Path, as the data set or the config names it; empty for the
            data set or the config as a whole.
        line: Of the file, from 1; 0 if not known.
        key: Path inside of the file or the config, such as
            ``'annotations[4].bbox'`` or ``'model.backbone.with_cp'``; empty
            for all of it.
        pixel: Row and column, ``(y, x)``, from 0.
        image: The image that is concerned, if ``file`` is about several.
        split: ``'train'``, ``'val'``, ...; empty if it is that of the
            finding.
    """

    file: str = ''
    line: int = 0
    key: str = ''
    pixel: tuple[int, int] | None = None
    image: str = ''
    split: str = ''

    @property
    def position(self) -> str:
        """Text for what is inside of the file: key, pixel and image."""
        inside = self.key
        if self.pixel is not None:
            inside = f'y={self.pixel[0]}, x={self.pixel[1]}'
        return ' of '.join(filter(None, (inside, self.image)))

    @property
    def source(self) -> str:
        """The line of the file; empty if it cannot be read."""
        path = Path(self.file or '.')
        if not self.line or not path.is_file():
            return ''
        lines = path.read_text('utf-8', 'backslashreplace').splitlines()
        return lines[self.line - 1] if self.line <= len(lines) else ''


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a rule has found.

    Attributes:
        rule: Stable id, such as ``'SEG001'``.
        severity: How bad it is; that of the rule, if nothing speaks against.
        message: One sentence with the facts; names the value and what was
            expected.
        remedy: What to do about it.
        split: ``'train'``, ``'val'``, ...; empty for all.
        location: Where it is.
        related: Further locations: other records with the same error in the
            same file, or other files. The first ones, if there are many.
        value: The value that is wrong, as text.
        count: Pixels, boxes, records or files that it is about.
        names: Parameters, modules, labels or files concerned.
        batches: Kinds of batches with which it was seen; empty for all, or
            where no batch matters.
        options: Smallest change of the config that mends it, as dotted keys
            and their new values; empty if it takes more than a config. A key
            whose value is :data:`~mmext.checks.config.DELETE` is to be
            removed.
        other_way: Where there are two ways: the one that ``options`` go,
            with its cost, while ``remedy`` is the other one.
    """

    rule: str
    severity: Severity
    message: str
    remedy: str
    split: str = ''
    location: Location = Location()
    related: tuple[Location, ...] = ()
    value: str = ''
    count: int = 1
    names: tuple[str, ...] = ()
    batches: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    other_way: str = ''

    @property
    def file(self) -> str:
        """File of the location."""
        return self.location.file

    @property
    def line(self) -> int:
        """Line of the location."""
        return self.location.line

    @property
    def key(self) -> str:
        """Key of the location."""
        return self.location.key

    def in_file(self, file: str, line: int) -> 'Finding':
        """The same finding, its key being in that line of a file."""
        location = Location(key=self.key, file=file, line=line)
        return msgspec.structs.replace(self, location=location)

    @property
    def position(self) -> str:
        """Text for the location in the file, related records included."""
        locations = [self.location.position]
        locations += (
            other.position
            for other in self.related
            if other.file == self.file and other.position
        )
        more = self.count - len(locations) if len(locations) > 1 else 0
        return ', '.join(locations) + (f' and {more} more' if more > 0 else '')
