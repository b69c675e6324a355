"""Decide which values of a label map are void, and what to write instead."""

from collections.abc import Container, Iterable, Sequence

from ..expectations import Expectations
from ..loaded import LoadedValues
from .change_log import Left

__all__ = ['ValuePlan', 'is_black_and_white', 'plan_values']

VOID = 255
_WIDE_VOIDS = (-1, 65535)
_FEW_CLASSES = 2


def _void_of(table: LoadedValues) -> int | None:
    """Stored value that the loader turns into what is ignored, if any.

    Not one that is a class, or that a label map ignores.
    """
    expected = table.expected
    ignored = expected.ignore_index
    if ignored is None or 0 <= ignored < expected.num_classes:
        return None
    mapped = {old for old, _ in expected.label_map}
    possible = [
        stored
        for stored, value in enumerate(table.value)
        if value == ignored and (stored == ignored or stored not in mapped)
    ]
    for best in (VOID, ignored):
        if best in possible:
            return best
    return possible[0] if possible else None


class ValuePlan:
    """What to do to the values of one label map.

    Args:
        table: What the loader makes of values.
        rules: Ids of rules whose findings are repaired.

    Attributes:
        new: Stored value to the one to write in its place.
        rule: For each of them, the rule whose finding it repairs.
        left: What is not repaired.
    """

    def __init__(self, table: LoadedValues, rules: Container[str]):
        self.table = table
        self.rules = rules
        self.new: dict[int, int] = {}
        self.rule: dict[int, str] = {}
        self.left: list[Left] = []

    def leave(self, rule: str, reason: str) -> None:
        """Note what is not repaired."""
        if rule in self.rules:
            self.left.append(Left(rule=rule, reason=reason))

    def void(self, stored: int, rule: str, others_fine: bool) -> None:
        """Write what is ignored in place of a void."""
        to = _void_of(self.table)
        ignored = self.table.expected.ignore_index
        if rule not in self.rules:
            return
        if to is None:
            reason = 'no stored value is loaded as it and is no class'
            self.leave(rule, f'ignore_index={ignored}: {reason}')
        elif not others_fine and rule != 'SEG008':
            self.leave(
                rule,
                f'other values of the mask are wrong, too, so {stored} may '
                'not be void',
            )
        else:
            self.new[stored] = to
            self.rule[stored] = rule


def plan_values(
    values: Sequence[tuple[int, int]],
    table: LoadedValues,
    rules: Container[str],
    unseen: Sequence[int],
) -> ValuePlan:
    """Plan the repair of values.

    Args:
        values: Each stored value with its number of pixels.
        table: What the loader makes of values.
        rules: Ids of rules whose findings are repaired.
        unseen: Classes that have no pixel anywhere in the data set.

    Returns:
        The plan; nothing but void is written anew.
    """
    plan = ValuePlan(table, rules)
    kinds = {value: table.kind_of(value) for value, _ in values}
    voids = {
        value
        for value, kind in kinds.items()
        if value in _WIDE_VOIDS or (value == VOID and kind == 'void')
    }
    fine = all(
        kind in ('class', 'ignored')
        for value, kind in kinds.items()
        if value not in voids
    )
    for value, kind in kinds.items():
        if kind == 'wide_void':
            plan.void(value, 'SEG008', fine)
        elif kind == 'wraps' and value in voids:
            plan.void(value, 'SEG002', fine)
        elif kind == 'wraps':
            plan.leave('SEG002', 'which class the value stands for is unknown')
        elif kind == 'void' and value not in voids:
            plan.leave(
                'SEG004',
                f'the loader makes 255 of {value}: a matter of the config',
            )
        elif kind == 'void' and is_black_and_white(kinds, table.expected):
            plan.leave('SEG005', 'white may be a class or void')
        elif kind == 'void' and unseen:
            plan.leave(
                'SEG004',
                f'class {unseen[0]} has no pixel, so 255 may stand for it',
            )
        elif kind == 'void':
            plan.void(value, 'SEG004', fine)
    return plan


def is_black_and_white(values: Iterable[int], expected: Expectations) -> bool:
    """Whether 255 may be the second of two classes, by the values of a mask.

    Examples:
        >>> is_black_and_white([0, 255], Expectations(num_classes=2))
        True
        >>> is_black_and_white([0, 1, 255], Expectations(num_classes=2))
        False
    """
    return 0 < expected.num_classes <= _FEW_CLASSES and set(values) <= {
        0,
        VOID,
    }
