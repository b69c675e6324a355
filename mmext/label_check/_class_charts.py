"""Bars of how often classes occur, the splits beside each other."""

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from .report import ClassCounts, Report, SplitReport

__all__ = ['class_charts']

# In percent of the width: what is there at all is seen.
_LEAST_WIDTH = 0.4

_Count = Callable[[ClassCounts], int]
_Total = Callable[[SplitReport], int]


def _measures(split: SplitReport) -> list[tuple[str, str, _Count, _Total]]:
    """Name, caption, count of a class, and what that is a share of."""
    if any(each.pixels for each in split.classes):
        return [
            (
                'pixels',
                'Pixels of each class after loading, and their share of the '
                'pixels of all classes.',
                lambda each: each.pixels,
                lambda whole: sum(each.pixels for each in whole.classes),
            ),
            (
                'label maps',
                'Label maps that have the class, and their share.',
                lambda each: each.masks,
                lambda whole: whole.num_masks,
            ),
        ]
    return [
        (
            'objects',
            'Objects of each class, and their share of all.',
            lambda each: each.boxes,
            lambda whole: sum(each.boxes for each in whole.classes),
        ),
        (
            'images',
            'Images that have an object of the class, and their share.',
            lambda each: each.images,
            lambda whole: whole.num_samples,
        ),
    ]


def _percent(share: float) -> str:
    if 0 < share < 0.00005:
        return '< 0.01 %'
    return f'{100 * share:.2f} %'


def _short(share: float) -> str:
    """A share in percent, three figures of it, never as 1e-07."""
    return f'{Decimal(f"{100 * share:.3g}"):f} %'


def _chart(splits: Sequence[SplitReport]) -> dict[str, Any]:
    """One for splits that have the same classes."""
    semantic = any(each.pixels for each in splits[0].classes)
    return {
        'splits': [
            {
                'split': each.split,
                'extent': f'{each.num_masks:,} label maps'
                if semantic
                else f'{each.num_samples:,} images',
            }
            for each in splits
        ],
        'measures': [
            _measure(splits, name, caption, count, total)
            for name, caption, count, total in _measures(splits[0])
        ],
    }


def _measure(
    splits: Sequence[SplitReport],
    name: str,
    caption: str,
    count: _Count,
    total: _Total,
) -> dict[str, Any]:
    rows = []
    for classes in zip(*(split.classes for split in splits)):
        cells = [
            {'count': count(each), 'part': count(each) / (total(split) or 1)}
            for each, split in zip(classes, splits)
        ]
        rows.append(
            {'label': classes[0].label, 'name': classes[0].name}
            | {'cells': cells}
        )
    parts = [cell['part'] for row in rows for cell in row['cells']]
    most = max(parts) or 1.0
    least = math.ceil(math.log10(min(filter(None, parts), default=1.0))) - 1
    decades = math.log10(most) - least
    for cell in (cell for row in rows for cell in row['cells']):
        part = cell.pop('part')
        cell['share'] = _percent(part)
        cell['linear'] = cell['log'] = '0'
        if part:
            log = 100 * (math.log10(part) - least) / decades
            cell['linear'] = _width(100 * part / most)
            cell['log'] = _width(log)
    return {
        'name': name,
        'caption': caption,
        'rows': rows,
        'most': _short(most),
        'least': _short(10.0**least),
        'decade': f'{100 / decades:.0f} %',
    }


def _width(percent: float) -> str:
    return f'{max(percent, _LEAST_WIDTH):.2f}'


def class_charts(report: Report) -> list[dict[str, Any]]:
    """What the page needs to draw the bars of each class.

    Args:
        report: Of a check.

    Returns:
        One for all splits that have the same classes. Each has ``splits``,
        and two ``measures``, such as pixels and label maps, with a row for
        each class and a cell for each split: ``count``, ``share`` as text,
        and the widths ``linear`` and ``log`` in percent. Widths of a
        measure have the same scale in all splits.
    """
    charts: dict[tuple, list[SplitReport]] = {}
    for split in report.splits:
        if split.classes:
            semantic = any(each.pixels for each in split.classes)
            names = tuple((each.label, each.name) for each in split.classes)
            charts.setdefault((semantic, names), []).append(split)
    return [_chart(splits) for splits in charts.values()]
