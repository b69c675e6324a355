"""Findings in a terminal, as compilers print them: what, where, and the cure.

Lines are neither wrapped nor cut, so that a path, a key or a command can be
copied; a terminal folds them itself. Paths are relative to the working
directory, and what a terminal would obey, or cannot show, is escaped.
"""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ...utils.printing import printable, printable_name
from .finding import Location, Rule, Severity
from .page import plural

_COLOURS = {
    Severity.ERROR: 'bold red',
    Severity.WARNING: 'bold yellow',
    Severity.INFO: 'bold cyan',
}
# Columns of what is no terminal: tables are as wide as their texts.
_NO_LIMIT = 100_000


def make_console(*, stderr: bool = False) -> Console:
    """Where a tool prints.

    Without colours if piped or with ``NO_COLOR`` set, and as wide as needed
    if piped.
    """
    plain = bool(os.environ.get('NO_COLOR'))
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        width=None if stream.isatty() else _NO_LIMIT,
        color_system=None if plain else 'auto',
        highlight=False,
    )


def _readable(text: str, encoding: str) -> str:
    """Text that a terminal shows and does not obey; paths are relative."""
    folder = re.escape(os.getcwd().rstrip('/'))
    text = re.sub(rf'(?<![\w./~-]){folder}/(?=[^/\s])', '', text)
    text = printable(text)
    return text.encode(encoding, 'backslashreplace').decode(encoding)


def _print_line(console: Console, *parts: tuple[str, str]) -> None:
    """Print one line as it is; parts are text and style."""
    line = Text.assemble(*parts)
    line.rstrip()
    console.print(line, soft_wrap=True, highlight=False)


def print_text(
    console: Console,
    text: str,
    label: str = '',
    style: str = '',
) -> None:
    """Print text that may hold anything.

    Args:
        console: Where to.
        text: Any; its newlines stay.
        label: Comes before it; further lines begin below the text's first.
        style: Of the label, or of the text if there is no label.
    """
    text = _readable(text, console.encoding)
    before, own = (label, style), '' if label else style
    for line in text.expandtabs(4).split('\n'):
        _print_line(console, before, (line, own))
        before = ' ' * len(label), ''


def location_of(location: Location) -> str:
    """``'file:line'`` on one line, or what is known of it."""
    file = location.file.replace('\n', r'\n')
    return f'{file}:{location.line}' if file and location.line else file


def print_heading(
    console: Console,
    severity: Severity,
    rule: str,
    message: str,
    location: str = '',
) -> None:
    """Print the first line of a finding: ``error ABC001 file:1: message``."""
    rest = f' {rule} {location}: ' if location else f' {rule}: '
    text = _readable(rest.lstrip() + message, console.encoding)
    noun = severity.noun, _COLOURS[severity]
    _print_line(console, noun, (f' {text.expandtabs(4)}', 'bold'))


def print_verdict(
    console: Console, severity: Severity | None, text: str
) -> None:
    """Print the first line of a report, which says what to do."""
    style = 'bold green' if severity is None else _COLOURS[severity]
    print_text(console, text, style=style)


def print_source(console: Console, location: Location) -> None:
    """Print the line of a file, with carets below the key that it sets."""
    line = location.source
    gutter = f'{location.line:>6} | '
    blank = f'{"":>6} | '
    code = _readable(line.expandtabs(4).rstrip(), console.encoding)
    start, end = _span(code, location.key)
    named = code[start:end]
    if code:
        _print_line(console, (gutter, 'blue'), (code, ''))
    if named:
        text = ' ' * cell_len(code[:start]) + '^' * cell_len(named)
        _print_line(console, (blank, 'blue'), (text, 'bold red'))
    if location.key not in ('', named):
        print_text(console, location.key, '    key: ')


def _span(code: str, key: str) -> tuple[int, int]:
    """Where a line names the last part of a key that it has; else (0, 0)."""
    result, at = (0, 0), 0
    for name in re.findall(r'[^.\[\]]+', key):
        match = re.compile(rf'(?<![\w.]){re.escape(name)}\b').search(code, at)
        if match and not name.isdecimal():
            result, at = match.span(), match.end()
    # Of an item of a list, it is not known which of several it is.
    name = code[result[0] : result[1]]
    rest = code[result[1] :]
    if '[' in key and name and re.search(rf'\b{re.escape(name)}\b', rest):
        return 0, 0
    return result


def print_counts(
    console: Console, severities: Iterable[Severity], after: str = ''
) -> None:
    """Print how many there are: ``'1 error, 0 warnings, 2 notes'``."""
    counts = Counter(severities)
    texts = (
        f'{counts[severity]:,} {plural(counts[severity], severity.noun)}'
        for severity in _COLOURS
    )
    print_text(console, ', '.join(texts) + after)


def in_words(texts: Iterable[str], most: int = 3) -> str:
    """``'a, b and c'``; of many, the first ones and how many more."""
    texts = list(texts)
    shown, more = texts[:most], len(texts) - most
    if more > 0:
        return f'{", ".join(shown)} and {more:,} more'
    return ' and '.join(filter(None, (', '.join(shown[:-1]), *shown[-1:])))


def cell(text: str) -> str:
    """Text of a table cell, which may hold anything, as rich's markup."""
    return escape(printable_name(text))


def print_table(console: Console, table: Table) -> None:
    """Print a table whose cells are not folded, without blanks at the end."""
    options = console.options.update(width=_NO_LIMIT)
    for segments in console.render_lines(table, options, pad=False):
        line = Text.assemble(
            *((segment.text, segment.style or '') for segment in segments)
        )
        line.rstrip()
        console.print(line, soft_wrap=True)


def print_rules(rules: Iterable[Rule], console: Console) -> None:
    """Print rules, each as a finding of it begins."""
    for rule in rules:
        print_heading(console, rule.severity, rule.id, rule.title)
        print_text(console, rule.scope, '    looks at: ')
        print_text(console, rule.remedy, '    remedy: ')
        if rule.fix:
            print_text(console, rule.fix, '    fix: ')
