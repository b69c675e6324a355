"""Class weights from counts of pixels, ready to paste."""

import textwrap
from collections.abc import Callable, Sequence

import numpy as np

from .report import SplitReport

_BETA = 0.9999


def _mean_1(weight: np.ndarray) -> np.ndarray:
    return weight / weight.mean()


# Kind -> function of the pixels of each class, and of the pixels of the
# images that have it.
CLASS_WEIGHT_KINDS: dict[str, Callable] = {
    'inverse': lambda pixels, area: _mean_1(pixels.sum() / pixels),
    'median_frequency': lambda pixels, area: (
        np.median(pixels / area) / (pixels / area)
    ),
    'enet': lambda pixels, area: 1 / np.log(1.02 + pixels / pixels.sum()),
    'effective_number': lambda pixels, area: _mean_1(
        (1 - _BETA) / -np.expm1(pixels * np.log(_BETA))
    ),
    # The logarithm of 1 is 0: a single one counts as two.
    'log': lambda pixels, area: _mean_1(1 / np.log(np.maximum(pixels, 2))),
}


def class_weights(
    kind: str, pixels: Sequence[int], area: Sequence[int]
) -> list[float]:
    """Weights of classes for a loss.

    ==================== ==================================================
    ``inverse``          total over pixels of the class, mean 1
    ``median_frequency`` frequency is the pixels of a class over all pixels
                         of the images that have it; the median of all over
                         that of the class (Eigen and Fergus, 2015)
    ``enet``             1 / ln(1.02 + share of the class) (ENet, 2016)
    ``effective_number`` (1 - b) / (1 - b ** n) with b = 0.9999, mean 1 (Cui
                         et al., 2019); of pixels this is nearly even
    ``log``              1 / ln(n), mean 1: the weights of OCNet's and
                         PIDNet's authors for Cityscapes
    ==================== ==================================================

    ``pixels`` are those of each class, ``n``; ``area`` those of all images
    that have the class. Weights are rounded to 4 digits after the point; a
    class that does not occur gets 0: nothing is known of it.

    Examples:
        >>> class_weights('inverse', [300, 100], [400, 400])
        [0.5, 1.5]
        >>> class_weights('enet', [100, 0], [100, 0])
        [1.4223, 0.0]
    """
    counts = np.asarray(pixels, dtype=np.float64)
    areas = np.asarray(area, dtype=np.float64)
    occurs = counts > 0
    result = np.zeros(len(counts))
    result[occurs] = CLASS_WEIGHT_KINDS[kind](counts[occurs], areas[occurs])
    return result.round(4).tolist()


def describe_class_weights(kind: str, split: SplitReport) -> str:
    """Class weights of a split, of pixels or else of objects, for a config."""
    pixels = any(row.pixels for row in split.classes)
    counts = [
        (row.pixels, row.area) if pixels else (row.boxes, row.images)
        for row in split.classes
    ]
    if not any(count for count, _ in counts):
        return f'# {kind}: no weights, {split.split} has no labels'
    weights = class_weights(kind, *map(list, zip(*counts)))
    unit = 'pixels' if pixels else 'objects'
    numbers = textwrap.fill(
        ' '.join(f'{weight:g},' for weight in weights),
        72,
        initial_indent='    ',
        subsequent_indent='    ',
    )
    return (
        f'# {kind}, from {unit} of {split.split}\n'
        f'class_weight = [\n{numbers}\n]'
    )
