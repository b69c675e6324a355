"""What a check says about a data set."""

from enum import IntEnum

import msgspec

__all__ = ['Finding', 'Severity']


class Severity(IntEnum):
    """How bad a finding is; a larger number is worse."""

    INFO = 0
    WARNING = 1
    ERROR = 2


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a rule has found.

    Attributes:
        rule: Stable id, such as ``'SEG001'``.
        severity: That of the rule.
        message: One sentence with the facts; names value and allowed range.
        remedy: What to do about it.
        split: ``'train'``, ``'val'``, ...; empty for all.
        file: Path of the file that is wrong, as the data set names it; empty
            for the data set or the config itself.
        place: Where in the file: ``'y=3, x=5'`` of the first pixel,
            ``'annotation 17'``, ``'images[4].width'``; empty for all of it.
        value: The value that is wrong, as text.
        count: Pixels, boxes or files that it is about.
    """

    rule: str
    severity: Severity
    message: str
    remedy: str
    split: str = ''
    file: str = ''
    place: str = ''
    value: str = ''
    count: int = 1
