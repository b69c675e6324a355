"""Find elements in the bytes of an XML file, to change them and no other."""

from xml.parsers import expat

__all__ = ['XmlEdit', 'XmlElement', 'find_elements']

# Encodings in which ASCII is ASCII; others could not be edited as bytes.
_WIDE_MARKS = (b'\xff\xfe', b'\xfe\xff', b'<\x00', b'\x00<')


class XmlElement:
    """Where an element stands in a file.

    Attributes:
        path: Names from the root on, such as ``'annotation/size/width'``.
        begin: Position of its ``<``.
        end: Position behind its last ``>``.
        inner: Begin and end of what is between its tags; empty for an
            element of one tag.
        text: Its text, without that of elements in it.
        children: Elements in it.
    """

    def __init__(self, path: str, begin: int):
        self.path = path
        self.begin = begin
        self.end = begin
        self.inner = (begin, begin)
        self.text = ''
        self.children: list[XmlElement] = []

    def find(self, path: str) -> 'XmlElement | None':
        """The first element of a path below this one."""
        name, _, rest = path.partition('/')
        for child in self.children:
            if child.path.rpartition('/')[2] == name:
                found = child.find(rest) if rest else child
                if found is not None:
                    return found
        return None


def find_elements(content: bytes) -> XmlElement:
    """Find all elements of a file.

    Args:
        content: Of a file in an encoding that ASCII is a part of.

    Returns:
        The root.

    Raises:
        ValueError: If it cannot be read so.

    Examples:
        >>> root = find_elements(b'<a><b>1</b><!-- c --></a>')
        >>> root.find('b').begin, root.find('b').inner
        (3, (6, 7))
    """
    if content.startswith(_WIDE_MARKS):
        raise ValueError('its encoding has more than a byte for each letter')
    parser = expat.ParserCreate()
    open_ones: list[XmlElement] = []
    roots: list[XmlElement] = []

    def start(name: str, _: dict) -> None:
        above = open_ones[-1].path + '/' if open_ones else ''
        element = XmlElement(above + name, parser.CurrentByteIndex)
        (open_ones[-1].children if open_ones else roots).append(element)
        open_ones.append(element)

    def end(_: str) -> None:
        element = open_ones.pop()
        element.end = inner = _tag_end(content, element.begin)
        if content[inner - 2] != ord('/'):
            position = parser.CurrentByteIndex
            element.inner = (inner, position)
            element.end = _tag_end(content, position)

    def text(data: str) -> None:
        open_ones[-1].text += data

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, LookupError) as error:
        raise ValueError(f'malformed XML: {error}') from error
    return roots[0]


def _tag_end(content: bytes, begin: int) -> int:
    """Position behind the ``>`` of a tag, past values of attributes."""
    quote = b''
    for position in range(begin, len(content)):
        letter = content[position : position + 1]
        if quote:
            quote = b'' if letter == quote else quote
        elif letter in (b'"', b"'"):
            quote = letter
        elif letter == b'>':
            return position + 1
    raise ValueError(f'the tag at byte {begin} does not end')


class XmlEdit:
    """Changes of a file, made together at last.

    Args:
        content: Bytes of the file.

    Examples:
        >>> edit = XmlEdit(b'<a><b>1</b></a>')
        >>> edit.set_text(find_elements(b'<a><b>1</b></a>').find('b'), '2')
        >>> edit.render()
        b'<a><b>2</b></a>'
    """

    def __init__(self, content: bytes):
        self._content = content
        self._edits: list[tuple[int, int, bytes]] = []

    def set_text(self, element: XmlElement, text: str) -> None:
        """Put a text in the place of all that is in an element."""
        name = element.path.rpartition('/')[2]
        begin, end = element.inner
        if begin == end == element.begin:
            new = f'<{name}>{text}</{name}>'.encode()
            self._edits.append((element.begin, element.end, new))
        else:
            self._edits.append((begin, end, text.encode()))

    def remove(self, element: XmlElement) -> None:
        """Take an element out, and the blanks and the line end before it."""
        self._edits = [
            each
            for each in self._edits
            if not element.begin <= each[0] < element.end
        ]
        kept = self._content[: element.begin].rstrip(b' \t\r\n')
        self._edits.append((len(kept), element.end, b''))

    def render(self) -> bytes:
        """The file with all changes."""
        content = self._content
        for begin, end, new in sorted(self._edits, reverse=True):
            content = content[:begin] + new + content[end:]
        return content
