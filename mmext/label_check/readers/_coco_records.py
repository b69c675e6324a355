"""The records of a COCO annotation file, with their types.

Keys that no rule asks for are skipped. Numbers of pixels are floats, as some
tools write 640.0; ids are whole numbers of 64 bits.
"""

from typing import Annotated, Any

import msgspec

__all__ = [
    'CocoRecords',
    'RawAnnotation',
    'RawCategory',
    'RawImage',
    'convert_record',
]

_MAX_SHOWN = 60

Id = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class RawImage(msgspec.Struct, gc=False):
    """One of ``images``."""

    id: Id
    file_name: str
    width: float = 0
    height: float = 0


class RawAnnotation(msgspec.Struct, gc=False):
    """One of ``annotations``; its segmentation is not decoded."""

    id: Id
    image_id: Id
    category_id: Id
    bbox: tuple[float, float, float, float] | None = None
    area: float | None = None
    iscrowd: int | bool = 0
    ignore: int | bool = 0
    segmentation: msgspec.Raw = msgspec.Raw()


class _DecodedAnnotation(RawAnnotation, gc=False):
    """The same, from a file that had to be decoded whole."""

    segmentation: Any = None


class RawCategory(msgspec.Struct, gc=False):
    """One of ``categories``."""

    id: Id
    name: str


class CocoRecords(msgspec.Struct):
    """The whole file."""

    images: list[RawImage]
    annotations: list[RawAnnotation]
    categories: list[RawCategory]


_KINDS = {
    'images': RawImage,
    'annotations': _DecodedAnnotation,
    'categories': RawCategory,
}


def convert_record(
    key: str, record: Any
) -> tuple[msgspec.Struct | None, str, str]:
    """Check the types of one record.

    Args:
        key: ``'images'``, ``'annotations'`` or ``'categories'``.
        record: As :mod:`json` decodes it.

    Returns:
        The record, None if its types are wrong; the place of the first
        wrong value in the record, such as ``'.bbox[2]'``; what is wrong.

    Examples:
        >>> convert_record('categories', {'id': 'a', 'name': 'cat'})
        (None, '.id', "Expected `int`, got `str`: 'a'")
    """
    try:
        return msgspec.convert(record, _KINDS[key]), '', ''
    except OverflowError as error:
        return None, '', f'a number is too large: {error}'
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(' - at `$')
        place = place.rstrip('`')
        field = place.lstrip('.').partition('[')[0]
        if isinstance(record, dict):
            value = repr(record[field] if field in record else sorted(record))
            more = '...' if len(value) > _MAX_SHOWN else ''
            text = f'{text}: {value[:_MAX_SHOWN]}{more}'
        return None, place, text
