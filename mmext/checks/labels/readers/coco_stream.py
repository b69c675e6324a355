"""Read the records of a large JSON file, a few MB of it at a time.

For files that are an object of arrays of objects, such as annotation files in
COCO's format. A piece of an array, from the begin of a record to the end of
one, is found by trying: put into brackets, it is JSON if, and only if, no
record is cut.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import BinaryIO

import msgspec

_BLOCK = 2 << 20
# Pieces that are tried before a file is left to another reader.
_TRIES = 4
_KEY = re.compile(rb'\s*"([^"\\]*)"\s*:\s*')
_MORE, _END = re.compile(rb'\}\s*,\s*(?=\{)'), re.compile(rb'\}\s*\]')
_NEXT = re.compile(rb'\s*([,}])')
_ARRAY = re.compile(rb'\[\s*')


class UnusualFile(ValueError):
    """A file that is to be read as a whole: broken, or of another form."""


def decode_records(text: bytes, kind: type) -> list:
    """Records of a piece of an array; raises msgspec.DecodeError.

    Raises:
        UnicodeDecodeError: If the text is no UTF-8; msgspec does not look
            into texts that nothing asks for.
    """
    if not text.isascii():
        text.decode()
    return msgspec.json.decode(b'[%s]' % text, type=list[kind])


def record_batches(
    file: BinaryIO, kinds: Mapping[str, type]
) -> Iterator[tuple[str, tuple[int, int], list]]:
    """All records of the arrays of a file, in its order.

    Args:
        file: Open for reading.
        kinds: Type of the records of each array, by its key.

    Yields:
        Key, where the piece is (first byte and length), and its records.

    Raises:
        UnusualFile: If the file lacks a key or has it twice, or if a record
            is not found.
        msgspec.DecodeError: If a record is no JSON, or of another type.
        UnicodeDecodeError: If text is no UTF-8.
    """
    window = _Window(file)
    window.expect(re.compile(rb'\s*\{'))
    seen = set()
    more = b','
    while more == b',':
        key = window.expect(_KEY)[1].decode()
        if key in seen:
            raise UnusualFile(f'the key {key!r} is there twice')
        seen.add(key)
        if key not in kinds:
            window.skip_value()
        else:
            for place, records in window.batches(kinds[key]):
                yield key, place, records
        more = window.expect(_NEXT)[1]
    if not seen.issuperset(kinds) or window.rest().strip():
        raise UnusualFile('there must be an object of all arrays, no more')


class _Window:
    """The part of a file that is in memory."""

    def __init__(self, file: BinaryIO) -> None:
        file.seek(0)
        self._file, self._text, self._at = file, b'', 0
        # Place in the file of the first byte of the text.
        self._begin = 0

    def _read(self) -> bool:
        """Read on; what was gone by is left out."""
        block = self._file.read(max(_BLOCK, len(self._text) - self._at))
        self._begin += self._at
        self._text, self._at = self._text[self._at :] + block, 0
        return bool(block)

    def rest(self) -> bytes:
        """What is left."""
        return self._text[self._at :] + self._file.read()

    def match(self, pattern: re.Pattern) -> re.Match | None:
        """What is next, if it is as wanted; near the end, reads on."""
        while True:
            found = pattern.match(self._text, self._at)
            if found and found.end() < len(self._text):
                return found
            if not self._read():
                return pattern.match(self._text, self._at)
            if not found and len(self._text) > 2 * _BLOCK:
                return None

    def expect(self, pattern: re.Pattern) -> re.Match:
        """The same, and go behind it."""
        found = self.match(pattern)
        if found is None:
            raise UnusualFile(f'{pattern.pattern!r} must follow')
        self._at = found.end()
        return found

    def skip_value(self) -> None:
        """Go behind a value of which nothing is wanted."""
        while True:
            # One byte for one character, to have the same places.
            text = self._text[self._at :].decode('latin-1')
            try:
                end = json.JSONDecoder().raw_decode(text)[1]
            except ValueError as error:
                if len(text) > 2 * _BLOCK or not self._read():
                    raise UnusualFile(str(error)) from error
                continue
            if end < len(text):
                self._text[self._at : self._at + end].decode()
                self._at += end
                return
            if not self._read():
                raise UnusualFile('the file ends too soon')

    def batches(self, kind: type) -> Iterator[tuple[tuple[int, int], list]]:
        """Place and records of the pieces of an array."""
        self.expect(_ARRAY)
        is_last = self._text.startswith(b']', self._at)
        self._at += is_last
        while not is_last:
            if len(self._text) - self._at < _BLOCK:
                self._read()
            while (found := self._piece(kind)) is None:
                if len(self._text) > _TRIES * _BLOCK or not self._read():
                    raise UnusualFile('no end of a record was found')
            records, end = found
            yield (self._begin + self._at, end.start() + 1), records
            self._at += end.end()
            is_last = end.re is _END

    def _piece(self, kind: type) -> tuple[list, re.Match] | None:
        """Records of a piece, as long as it can be, and its end."""
        piece = self._text[self._at :]
        for end in _ends(piece):
            try:
                return decode_records(piece[: end.start() + 1], kind), end
            except msgspec.ValidationError:
                raise  # The records are found, and one is wrong.
            except msgspec.DecodeError:
                continue
        return None


def _ends(piece: bytes) -> Iterator[re.Match]:
    """Where a piece of an array may end, the likely places first."""
    before_others = _from_the_end(piece)
    yield from islice(before_others, 1)
    yield from islice(_END.finditer(piece), _TRIES)
    yield from islice(before_others, _TRIES)


def _from_the_end(piece: bytes) -> Iterator[re.Match]:
    """Where an object is followed by another one, the last first."""
    place = piece.rfind(b'}')
    while place >= 0:
        found = _MORE.match(piece, place)
        if found:
            yield found
        place = piece.rfind(b'}', 0, place)
