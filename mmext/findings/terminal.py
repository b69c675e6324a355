"""Findings and rules in a terminal."""

from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .finding import Severity
from .rule import Rule

__all__ = [
    'print_counts',
    'print_heading',
    'print_line',
    'print_rules',
]

_COLOURS = {
    Severity.ERROR: 'bold red',
    Severity.WARNING: 'yellow',
    Severity.INFO: 'cyan',
}
_NOUNS = {
    Severity.ERROR: 'error',
    Severity.WARNING: 'warning',
    Severity.INFO: 'note',
}


def print_line(console: Console, text: str, before: str = '') -> None:
    """Print text that may hold anything; ``before`` may hold markup."""
    console.print(f'{before}{escape(text)}', highlight=False)


def print_heading(
    console: Console, severity: Severity, rule: str, message: str
) -> None:
    """Print the first line of a finding."""
    name = severity.name.lower()
    print_line(console, message, f'[{_COLOURS[severity]}]{name} {rule}[/] ')


def print_counts(
    console: Console, severities: Iterable[Severity], after: str = ''
) -> None:
    """Print how many findings of each severity there are."""
    counts = Counter(severities)
    words = (
        f'{counts[severity]} {noun}{"" if counts[severity] == 1 else "s"}'
        for severity, noun in _NOUNS.items()
    )
    print_line(console, ', '.join(words) + after)


def print_rules(rules: Iterable[Rule], console: Console) -> None:
    """Print a table of rules."""
    table = Table()
    for name in (
        'rule',
        'severity',
        'looks at',
        'what is wrong',
        'remedy',
        'fix',
    ):
        table.add_column(name, overflow='fold')
    for rule in rules:
        severity = rule.severity.name.lower()
        texts = (rule.id, severity, rule.scope, rule.title, rule.remedy)
        table.add_row(*map(escape, (*texts, rule.fix)))
    console.print(table)
