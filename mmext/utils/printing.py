r"""Print text of data, such as class and file names, without obeying it.

A name may hold any character: a terminal obeys escape sequences, control
characters of eight bits and bidirectional marks, and a file name that is not
UTF-8 cannot be encoded. :func:`printable` escapes them, and all that tools
print goes through it: lines by :func:`say`, reports by
``mmext.checks.findings.terminal``, errors and tracebacks by ``cli``, log
records and warnings by ``quiet_hosts``.
"""

import json
import logging
import re
import sys

_SURROGATE = re.compile('[\ud800-\udfff]')
# Control characters but tab and newline; line separators; marks that change
# the direction of text or are invisible, without the joiners of emoji.
_UNPRINTABLE = re.compile(
    '[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e'
    '\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]'
)


def _escaped(match: re.Match) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:
        return f'\\x{code - 0xDC00:02x}'
    return ascii(match[0])[1:-1]


def readable(text: str) -> str:
    r"""Escape what cannot be encoded as UTF-8.

    A byte of a file name that is not UTF-8 becomes ``\xff``.
    """
    return _SURROGATE.sub(_escaped, text)


def printable(text: str) -> str:
    r"""Escape what a terminal obeys, hides or cannot encode.

    Newlines and tabs stay, see :func:`printable_name`.

    Examples:
        >>> print(printable('car\x1b[2J\u202e'))
        car\x1b[2J\u202e
    """
    return _UNPRINTABLE.sub(_escaped, text)


def printable_name(name: str) -> str:
    r"""Escape as :func:`printable` does, and newlines and tabs, too."""
    return printable(name).replace('\n', r'\n').replace('\t', r'\t')


def printable_json(text: str) -> str:
    r"""Escape the same characters in a JSON text, which keeps its meaning.

    Only a byte that is not UTF-8, which JSON cannot hold, becomes ``\\xff``.
    """

    def escape(match: re.Match) -> str:
        return json.dumps(readable(match[0]))[1:-1]

    return _UNPRINTABLE.sub(escape, text)


def say(text: str, *, error: bool = False) -> None:
    """Print text that may hold anything, to standard output or error."""
    print(printable(text), file=sys.stderr if error else sys.stdout)


class PrintableRecord(logging.LogRecord):
    """A log record whose message is printable."""

    def getMessage(self) -> str:
        """The message with its arguments."""
        return printable(super().getMessage())
