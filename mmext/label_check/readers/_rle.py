"""Masks as run lengths, in the two forms that COCO's files have."""

from typing import Any

__all__ = ['rle_error']

# Five bits a character, from this one on; the sixth says that more follow.
_FIRST = 48
_BITS = 5
_MORE = 0x20
_SIGN = 0x10
_LAST = _FIRST + 63


def rle_error(value: dict[str, Any], size: tuple[float, float]) -> str:
    """Say what is wrong with run lengths.

    Args:
        value: With ``size``, height and width, and ``counts``: lengths, or
            the text that pycocotools makes of them.
        size: Height and width of the image; 0 if unknown.

    Returns:
        One sentence; empty if nothing is.

    Examples:
        >>> rle_error({'size': [2, 3], 'counts': [1, 4]}, (2, 3))
        'the counts of the RLE are 5 pixels together, its size is 2 x 3'
    """
    own, counts = value.get('size'), value.get('counts')
    if (
        not isinstance(own, list)
        or len(own) != 2
        or not all(_is_count(each) for each in own)
    ):
        return f'size of the RLE must be [height, width], got {own!r:.60}'
    if all(size) and tuple(own) != tuple(size):
        return (
            f'the RLE is of {own[0]} x {own[1]} pixels (height x width), '
            f'the image of {size[0]:g} x {size[1]:g}'
        )
    if isinstance(counts, str):
        lengths = _decoded(counts)
    else:
        lengths = counts if isinstance(counts, list) else None
    if lengths is None or not all(_is_count(each) for each in lengths):
        return f'counts of the RLE must be lengths, got {counts!r:.60}'
    if sum(lengths) != own[0] * own[1]:
        return (
            f'the counts of the RLE are {sum(lengths)} pixels together, its '
            f'size is {own[0]} x {own[1]}'
        )
    return ''


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0 and value is not True


def _decoded(text: str) -> list[int] | None:
    """Lengths of a compressed text; None if it is none."""
    lengths: list[int] = []
    number = shift = 0
    for code in text.encode('utf-8', 'replace'):
        if not _FIRST <= code <= _LAST:
            return None
        bits = code - _FIRST
        number |= (bits & (_MORE - 1)) << shift
        shift += _BITS
        if bits & _MORE:
            continue
        if bits & _SIGN:
            number -= 1 << shift
        # From the fourth on, the difference to the one before the last.
        if len(lengths) > 2:
            number += lengths[-2]
        lengths.append(number)
        number = shift = 0
    return None if shift else lengths
