"""Edit records in arrays of a JSON file, and leave every other byte alone."""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

_SPACE = re.compile(rb'[ \t\n\r]*')
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
# What json writes and JSON does not have; texts come first, to be passed by.
_NOT_JSON = re.compile(rb'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')


def _masked(content: bytes) -> bytes:
    """The same length, with numbers in place of NaN and Infinity."""

    def number(match: re.Match) -> bytes:
        text = match.group()
        if text.startswith(b'"'):
            return text
        return text[:1].replace(b'N', b'1').replace(b'I', b'1') + b'1' * (
            len(text) - 1
        )

    return _NOT_JSON.sub(number, content)


def _after_space(content: bytes, position: int) -> int:
    return _SPACE.match(content, position).end()


def _top_level(content: bytes) -> Iterator[tuple[str, int, msgspec.Raw]]:
    """Key, position and text of each value of the outermost object."""
    values = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    position = _after_space(content, 0) + 1
    for key, value in values.items():
        position = _after_space(content, position)
        name = _STRING.match(content, position)
        if name is None or json.loads(name.group()) != key:
            raise ValueError(f'the key {key!r} occurs twice')
        position = _after_space(content, name.end()) + 1
        position = _after_space(content, position)
        yield key, position, value
        position = _after_space(content, position + len(bytes(value))) + 1
    if content[position - 1 : position] != b'}' and values:
        raise ValueError('a key occurs twice')


def _spans(content: bytes, begin: int, array: msgspec.Raw) -> list[tuple]:
    """Begin and end of each element of an array."""
    spans = []
    position = begin + 1
    for record in msgspec.json.decode(array, type=list[msgspec.Raw]):
        position = _after_space(content, position)
        end = position + len(bytes(record))
        spans.append((position, end))
        position = _after_space(content, end) + 1
    return spans


class JsonRecords:
    """Records of a JSON file that can be replaced and removed."""

    def __init__(self, content: bytes, keys: list[str]):
        self._content = content
        self._ascii = content.isascii()
        try:
            found = self._find(content, keys)
        except (msgspec.DecodeError, RecursionError):
            found = self._find(_masked(content), keys)
        self._spans = found
        self._new: dict[tuple[str, int], Any] = {}
        self._added: dict[tuple[str, int], dict[str, Any]] = {}
        self._removed: set[tuple[str, int]] = set()

    @staticmethod
    def _find(content: bytes, keys: list[str]) -> dict[str, list[tuple]]:
        try:
            return {
                key: _spans(content, begin, value)
                for key, begin, value in _top_level(content)
                if key in keys
            }
        except msgspec.ValidationError as error:
            raise ValueError(f'not an object of arrays: {error}') from error

    def text(self, key: str, index: int) -> bytes:
        """A record as it is in the file."""
        begin, end = self._spans[key][index]
        return self._content[begin:end]

    def get(self, key: str, index: int) -> Any:
        """A record as it is now; change it with :meth:`replace`."""
        at = key, index
        if at in self._new:
            return self._new[at]
        return json.loads(self.text(key, index)) | self._added.get(at, {})

    def replace(self, key: str, index: int, record: Any) -> None:
        """Put a record in the place of one."""
        self._new[key, index] = record

    def add_field(self, key: str, index: int, name: str, value: Any) -> None:
        """Add a field at the end of a record that lacks it."""
        at = key, index
        if at in self._new:
            self._new[at] = self._new[at] | {name: value}
        else:
            self._added.setdefault(at, {})[name] = value

    def remove(self, key: str, index: int) -> None:
        """Take a record out."""
        self._removed.add((key, index))

    def edited(self, key: str, index: int) -> bool:
        """Whether a record was replaced."""
        return (key, index) in self._new

    def _text_now(self, key: str, index: int) -> bytes:
        at = key, index
        if at in self._new:
            text = json.dumps(self._new[at], ensure_ascii=self._ascii)
            return text.encode()
        text = self.text(key, index)
        if at in self._added:
            added = json.dumps(self._added[at]).encode()[1:-1]
            return text[:-1].rstrip() + b', ' + added + b'}'
        return text

    def render(self) -> bytes:
        """The file as it is now."""
        if not (self._new or self._added or self._removed):
            return self._content
        pieces: list[bytes] = []
        position = 0
        for key, spans in sorted(
            self._spans.items(), key=lambda item: item[1][:1]
        ):
            first = True
            for index, (begin, end) in enumerate(spans):
                if index == 0:
                    pieces.append(self._content[position:begin])
                if (key, index) not in self._removed:
                    if not first:
                        before = spans[index - 1][1]
                        pieces.append(self._content[before:begin])
                    pieces.append(self._text_now(key, index))
                    first = False
                position = end
        pieces.append(self._content[position:])
        return b''.join(pieces)
