"""Repair an annotation file in COCO's format."""

from collections.abc import Container, Sequence

from ..expectations import Expectations
from ..facts import ImageFacts
from ..readers.coco_reader import read_coco
from ._coco_boxes import (
    clip_boxes,
    fill_fields,
    remove_dangling,
    remove_repeated,
    remove_without_area,
)
from ._coco_draft import CocoDraft
from ._coco_ids import (
    drop_repeated_images,
    fix_images,
    number_annotations,
    sort_categories,
)
from ._coco_sizes import fix_sizes
from ._json_records import JsonRecords
from .change_log import FixedFile, Left

__all__ = ['COCO_RULES', 'fix_coco']

COCO_RULES = frozenset(
    (
        'COCO002',
        'COCO003',
        'COCO004',
        'COCO005',
        'COCO006',
        'COCO008',
        'COCO011',
        'DET001',
        'DET002',
        'DET004',
        'DET005',
        'DET010',
        'PAIR004',
    )
)


def fix_coco(
    content: bytes,
    expected: Expectations,
    images: Sequence[ImageFacts | None] = (),
    *,
    rules: Container[str] = COCO_RULES,
) -> FixedFile:
    """Repair an annotation file.

    Args:
        content: Bytes of the file.
        expected: Of the training.
        images: Facts of the image of each row of
            :class:`~mmext.label_check.readers.coco_reader.CocoImages`; empty
            if none is known.
        rules: Ids of rules whose findings are repaired.

    Returns:
        The file, whose other records have the bytes that they had. Records
        that cannot be read stay where they are.

    Raises:
        ValueError: If there are facts of another number of images.

    Note:
        1 to 3 s for 150,000 annotations (68 MB); 10 s if NaN is among them,
        which is no JSON.
    """
    file = read_coco(content)
    keys = ['images', 'annotations', 'categories']
    if len(images) not in (0, len(file.images.id)):
        raise ValueError(
            f'images must have one element for each of the '
            f'{len(file.images.id)} images of the file, got {len(images)}'
        )
    if any(each.place in ('', *keys) for each in file.errors):
        return FixedFile(content=content)
    try:
        draft = CocoDraft(file, JsonRecords(content, keys), expected, rules)
        _repair(draft, images)
        new = draft.records.render()
    # Numbers of thousands of digits, and lists in thousands of lists.
    except (ValueError, RecursionError) as error:
        left = Left(rule='COCO001', reason=f'it cannot be edited: {error}')
        return FixedFile(content=content, left=(left,))
    gone = {draft.place(row, 'images') for row in draft.gone}
    changes = (
        each
        for each in draft.changes
        if each.rule != 'PAIR004' or each.place not in gone
    )
    return FixedFile(
        content=new,
        changes=tuple(changes),
        left=tuple(draft.left),
    )


def _repair(draft: CocoDraft, images: Sequence[ImageFacts | None]) -> None:
    """All repairs; one of a second run would find nothing to do."""
    remove_dangling(draft)
    remove_without_area(draft)
    sizes, certain = fix_sizes(draft, images)
    drop_repeated_images(draft)
    clip_boxes(draft, sizes, certain & ~draft.shared_ids())
    fill_fields(draft)
    remove_repeated(draft)
    number_annotations(draft)
    fix_images(draft)
    sort_categories(draft)
