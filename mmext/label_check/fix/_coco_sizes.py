"""Decide which size of an image is right: that of its file, or as noted."""

from collections.abc import Sequence

import msgspec
import numpy as np

from ..facts import ImageFacts
from ..readers.coco_reader import RLE
from ..rules._unreadable import has_size
from ._coco_draft import CocoDraft

__all__ = ['NotedSize', 'fix_sizes', 'why_size_stays']

_SLACK = 1.0
_QUARTER_TURNS = (5, 6, 7, 8)


class NotedSize(msgspec.Struct, frozen=True):
    """A size that an annotation notes, and that of the image file.

    Attributes:
        noted: Width and height; 0 for what is not noted.
        stored: Width and height of the file, as stored.
    """

    noted: tuple[float, float]
    stored: tuple[int, int]


def why_size_stays(size: NotedSize, fits: bool) -> str:
    """Why the size of the file is not written into the annotation.

    Args:
        size: Both of them, which differ.
        fits: Whether each object that fits the size as noted fits that of
            the file, too.

    Returns:
        The reason; empty if it can be written.

    Examples:
        >>> why_size_stays(NotedSize((640, 480), (320, 240)), True)[:37]
        'the image seems to have been scaled, '
        >>> why_size_stays(NotedSize((0, 0), (320, 240)), True)
        ''
    """
    (wide, high), (width, height) = size.noted, size.stored
    if wide <= 0 or high <= 0:
        return ''
    if abs(wide * height - high * width) <= max(wide, high, width, height):
        return (
            'the image seems to have been scaled, and its objects would have '
            'to be scaled, too'
        )
    if not fits:
        return 'objects fit the size that is noted and not that of the file'
    return ''


def fix_sizes(
    draft: CocoDraft, images: Sequence[ImageFacts | None]
) -> tuple[np.ndarray, np.ndarray]:
    """Write the sizes of image files into the annotation file.

    Args:
        draft: Gets the changes.
        images: Facts of the image of each row; empty if they are not known.

    Returns:
        ``(N, 2)`` float64, width and height of each image; ``(N,)`` bool,
        those whose size is certain.
    """
    noted = np.column_stack(
        (draft.file.images.width, draft.file.images.height)
    )
    noted = np.trunc(np.nan_to_num(noted, posinf=0, neginf=0))
    if not len(images) or not len(noted):
        return noted, (noted > 0).all(axis=1)
    stored = np.array(
        [
            (each.width, each.height) if has_size(each) else (0, 0)
            for each in images
        ],
        np.float64,
    ).reshape(-1, 2)
    turned = np.array(
        [
            has_size(each) and each.orientation in _QUARTER_TURNS
            for each in images
        ],
        np.bool_,
    )
    known = stored.all(axis=1) & ~turned
    other = known & (noted != stored).any(axis=1)
    sizes = np.where(known[:, None], stored, noted)
    certain = (sizes > 0).all(axis=1) & ~turned
    fits = _fits(draft, noted, stored)
    for row in np.flatnonzero(other).tolist():
        size = NotedSize(
            tuple(noted[row].tolist()),
            tuple(int(side) for side in stored[row]),
        )
        why = why_size_stays(size, bool(fits[row]))
        if why or 'PAIR004' not in draft.rules:
            certain[row] = False
            if 'PAIR004' in draft.rules:
                draft.leave('PAIR004', why, draft.place(row, 'images'))
            continue
        _write_size(draft, row, size)
    return sizes, certain


def _fits(
    draft: CocoDraft, noted: np.ndarray, stored: np.ndarray
) -> np.ndarray:
    """Images whose objects fit the one size as well as the other."""
    fine = np.ones(len(noted), np.bool_)
    rows = draft.image_row
    looked_at = draft.alive & (rows >= 0)
    ends = draft.box[:, :2] + draft.box[:, 2:]
    fits_noted = (ends <= noted[rows] + _SLACK).all(axis=1)
    fits_stored = (ends <= stored[rows] + _SLACK).all(axis=1)
    # The mask has the size that was noted.
    has_rle = draft.file.annotations.segmentation_kind == RLE
    bad = looked_at & ((fits_noted & ~fits_stored) | has_rle)
    fine[rows[bad]] = False
    return fine


def _write_size(draft: CocoDraft, row: int, size: NotedSize) -> None:
    record = draft.get(row, 'images')
    width, height = size.stored
    draft.note(
        'PAIR004',
        row,
        {key: record.get(key) for key in ('width', 'height')},
        {'width': width, 'height': height},
        kind='images',
        reason='the size of the image file',
    )
    draft.replace(row, record | {'width': width, 'height': height}, 'images')
