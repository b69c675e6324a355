"""What is wrong with the labels of a sample, and how it is said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    'LabelError',
    'LabelProblem',
    'LabelSpec',
    'as_array',
    'describe',
    'file_of',
    'image_size',
]


@dataclass(frozen=True)
class LabelSpec:
    """What labels must be.

    Attributes:
        num_classes: Labels of boxes are in ``[0, num_classes)``.
        num_seg_classes: The same of pixels.
        ignore_index: Value of pixels without a class; None for none.
        box_tolerance: Pixels by which a box may stick out of the image, and
            a side of it differ from that of its mask.
        min_size: Width and height of a box are larger than this.
        mask_box_iou: Overlap of a box with that around its mask is at least
            this.
        panoptic_agreement: Part of the pixels of a mask that have its class
            in the semantic map is at least this.
    """

    num_classes: int
    num_seg_classes: int
    ignore_index: int | None = 255
    box_tolerance: float = 1.0
    min_size: float = 0.0
    mask_box_iou: float = 0.5
    panoptic_agreement: float = 0.95


@dataclass(frozen=True)
class LabelProblem:
    """One thing that is wrong with the labels of a sample.

    Attributes:
        check: ``'dtype'``, ``'shape'``, ``'range'``, ``'count'``, ``'box'``,
            ``'mask'`` or ``'panoptic'``.
        field: Key of the sample, such as ``'gt_seg_map'``.
        message: Facts, with value, place and what is allowed.
        remedy: What to do about it.
        count: Pixels, boxes, labels or masks that are wrong.
    """

    check: str
    field: str
    message: str
    remedy: str
    count: int = 1

    @property
    def is_repairable(self) -> bool:
        """Whether the wrong pixels can be ignored, the others staying."""
        return self.check == 'range' and self.field.startswith('gt_seg_map')


class LabelError(ValueError):
    """The labels of a sample are not what the training needs.

    Args:
        message: For the user.
        problems: The facts; empty after a trip through a data loader of
            PyTorch, which keeps the text alone.
    """

    def __init__(
        self, message: str, problems: Sequence[LabelProblem] = ()
    ) -> None:
        super().__init__(message)
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.problems)


def file_of(results: Mapping[str, Any], field: str = '') -> str:
    """The file that a label comes from, as far as the sample says.

    Args:
        results: The sample.
        field: Key of the label.

    Returns:
        The label map for labels of pixels, else the image; words if neither
        is known.

    Examples:
        >>> file_of({'img_path': 'a.jpg', 'seg_map_path': 'a.png'})
        'a.jpg'
    """
    keys = ('img_path', 'filename', 'seg_map_path')
    if field.startswith('gt_seg_map'):
        keys = (field.removeprefix('gt_') + '_path', 'seg_map_path', *keys)
    found = (str(results[key]) for key in keys if results.get(key))
    return next(found, 'a sample without img_path')


def image_size(results: Mapping[str, Any]) -> tuple[int, int] | None:
    """Height and width of the image of a sample.

    Args:
        results: The sample.

    Returns:
        None if it has no image, and does not tell the size of one.
    """
    shape = getattr(results.get('img'), 'shape', results.get('img_shape'))
    return None if shape is None else (int(shape[0]), int(shape[1]))


def as_array(values: Any) -> np.ndarray:
    """Boxes or labels as numbers.

    Args:
        values: An array, a tensor of the CPU, or boxes of mmdet.

    Returns:
        Without a copy if possible.
    """
    return np.asarray(getattr(values, 'tensor', values))


def describe(
    results: Mapping[str, Any], problems: Sequence[LabelProblem]
) -> str:
    """Say what is wrong with a sample.

    Args:
        results: The sample.
        problems: At least one.

    Returns:
        Several lines: the files, then each problem with its remedy.
    """
    files = dict.fromkeys(file_of(results, each.field) for each in problems)
    number = len(problems)
    lines = [
        f'{number} label problem{"s" if number > 1 else ""} in '
        f'{", ".join(files)}'
    ]
    image = file_of(results)
    if image not in files:
        lines[0] += f' (image {image})'
    for problem in problems:
        lines.append(f'  {problem.field}: {problem.message}')
        lines.append(f'    {problem.remedy}')
    return '\n'.join(lines)
