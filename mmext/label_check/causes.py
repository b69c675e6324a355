"""The likely cause of labels out of range, from all values of a data set."""

from collections.abc import Sequence

from ..utils.label_hints import likely_cause
from .expectations import Expectations
from .loaded import loaded_values
from .totals import SplitTotals

__all__ = ['likely_remedies']

_MAP_SHAPE = (1, 1, 1)


def likely_remedies(
    totals: Sequence[SplitTotals], expected: Sequence[Expectations]
) -> dict[str, str]:
    """Remedies that take all values into account, not those of one file.

    Args:
        totals: Of each split.
        expected: In the same order.

    Returns:
        Rule id to remedy, for
        :func:`~mmext.label_check.groups.group_findings`; empty if no value
        is out of range.
    """
    bad: dict[int, int] = {}
    fine: set[int] = set()
    wanted: Expectations | None = None
    for own, each in zip(totals, expected):
        table = loaded_values(each)
        for stored, count in own.pixels.items():
            kind, value = table.kind_of(stored), table.value[stored % 256]
            if kind == 'bad':
                bad[value] = bad.get(value, 0) + count
                wanted = wanted or each
            elif kind in ('class', 'ignored'):
                fine.add(value)
    if wanted is None:
        return {}
    return {
        'SEG001': likely_cause(
            wanted.num_classes,
            wanted.ignore_index,
            bad,
            fine,
            _MAP_SHAPE,
        )
    }
