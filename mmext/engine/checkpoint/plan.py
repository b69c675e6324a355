"""Differences between a checkpoint and a config: the table and the refusal."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmengine.optim import ReduceOnPlateauParamScheduler
from mmengine.runner import Runner
from rich import box
from rich.console import Console
from rich.table import Table

CHECKPOINT, CONFIG = 'checkpoint', 'config'
REFUSED = 'REFUSED'


@dataclass(frozen=True)
class Change:
    """One difference.

    Args:
        key: Key of the config, or what it is about.
        before: In the checkpoint.
        now: In the present config.
        holds: What is used: ``'checkpoint'`` or ``'config'``, or
            ``'REFUSED'``.
        note: What follows from it.
    """

    key: str
    before: Any
    now: Any
    holds: str
    note: str = ''


@dataclass
class ResumePlan:
    """All differences, and what is to be applied.

    Args:
        changes: The differences.
        ends: New ends of schedulers, by name of the optimizer and index.
    """

    changes: list[Change]
    ends: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def refused(self) -> list[Change]:
        """Differences with which the training cannot go on."""
        return [item for item in self.changes if item.holds == REFUSED]

    def table(self) -> str:
        """The differences as a table."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column('setting', no_wrap=True)
        table.add_column('checkpoint', no_wrap=True)
        table.add_column('config', no_wrap=True)
        table.add_column('holds', no_wrap=True)
        table.add_column('', overflow='fold', max_width=60)
        for item in self.changes:
            table.add_row(
                item.key,
                _short(item.before),
                _short(item.now),
                item.holds,
                item.note,
            )
        return table_text(table)

    def check(self, filename: str) -> None:
        """Raise ValueError if something is refused."""
        if self.refused:
            text = '; '.join(
                f'{item.key}: {_short(item.before)} in the checkpoint, '
                f'{_short(item.now)} now - {item.note}'
                for item in self.refused
            )
            raise ValueError(f'cannot resume from {filename!r}: {text}')

    def apply(self, runner: Runner) -> None:
        """Set what the states of the checkpoint have of the old config."""
        schedulers = by_wrapper(runner.param_schedulers, [])
        for (name, index), end in self.ends.items():
            scheduler = schedulers[name][index]
            # From its end on a scheduler counts, and does nothing else.
            idle = max(0, scheduler._global_step - scheduler.end + 1)
            scheduler.end = end
            if not isinstance(scheduler, ReduceOnPlateauParamScheduler):
                scheduler._global_step -= idle
                for _ in range(idle):
                    scheduler.step()


def table_text(table: Table) -> str:
    """A table as text, for a log: no colours, no line that is cut."""
    console = Console(
        file=io.StringIO(),
        width=1000,
        color_system=None,
        markup=False,
        emoji=False,
        highlight=False,
    )
    console.print(table)
    lines = console.file.getvalue().splitlines()
    return '\n'.join(line.rstrip() for line in lines if line.strip())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f'{value:.6g}'
    text = str(value)
    return text if len(text) <= 60 else f'{text[:57]}...'


def by_wrapper(value: Any, missing: Any) -> dict[str, Any]:
    """Schedulers, or their states, by name of the optimizer."""
    if isinstance(value, Mapping):
        return dict(value)
    return {'': missing if value is None else value}
