"""What findings look like in a terminal."""

import io
import os

import pytest
from rich.console import Console
from rich.table import Table

from mmext.checks.findings import Location, Severity, terminal


def printed(function, *args, width: int = 40, encoding: str = '') -> str:
    out = io.StringIO()
    if encoding:
        out = io.TextIOWrapper(io.BytesIO(), encoding, newline='\n')
    function(Console(file=out, width=width), *args)
    out.seek(0)
    return out.read()


def test_lines_begin_below_the_first_and_are_not_wrapped():
    text = f'{"one two " * 8}\npython tools/train.py {"long " * 9}x'
    first, second = text.split('\n')
    shown = printed(terminal.print_text, text, 'remedy: ', width=24)
    assert shown == f'remedy: {first.rstrip()}\n        {second}\n'


def test_a_heading_is_one_line():
    name = 'find_unused_parameters' * 4
    text = printed(
        terminal.print_heading, Severity.ERROR, 'DDP001', name, 'a.py:3'
    )
    assert text == f'error DDP001 a.py:3: {name}\n'


def test_paths_below_the_working_directory_are_relative(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    here = os.getcwd()
    text = f'{here}/a.py, /x{here}/b.py, {here}s/c.py'
    assert printed(terminal.print_text, text, width=1000) == (
        f'a.py, /x{here}/b.py, {here}s/c.py\n'
    )


def test_tables_break_no_path():
    """In a terminal, too, which folds the lines itself."""
    path = f'work_dirs/{"a-long-name/" * 9}mask 1.png'
    table = Table('file', 'why')
    table.add_row(path, 'it is empty')
    shown = printed(terminal.print_table, table, width=30)
    assert f' {path} ' in shown
    assert len(shown.splitlines()) == 5


def test_what_a_terminal_would_obey_is_escaped():
    text = 'a\x1b[31m\x07\u202e\udcff.png [red]ü[/red]'
    shown = r'a\x1b[31m\x07\u202e\xff.png [red]ü[/red]'
    assert printed(terminal.print_text, text, width=80) == f'{shown}\n'
    assert (
        printed(terminal.print_text, text, width=80, encoding='ascii')
        == shown.replace('ü', r'\xfc') + '\n'
    )


@pytest.mark.parametrize(
    ('line', 'key', 'marked'),
    [
        ('model = dict(head=dict(n=6))', 'model.head.n', 'n'),
        ('    head=dict(n=6),', 'model.head.n', 'n'),
        # What is missing is marked where it would be.
        ('auto_scale_lr = dict(enable=True)', 'auto_scale_lr.base', 'auto'),
        ("    dict(type='Resize', scale=2),", 'pipeline[1].scale', 'scale'),
        # Which of the two it is, is not known.
        ('heads = [dict(n=1), dict(n=2)]', 'heads[1].n', ''),
        ('x = 1', 'model.head', ''),
    ],
)
def test_the_key_is_marked(tmp_path, line, key, marked):
    file = tmp_path / 'a.py'
    file.write_text(f'# first\n{line}\n')
    where = Location(file=str(file), line=2, key=key)
    text = printed(terminal.print_source, where, width=80)
    shown, *rest = text.splitlines()
    assert shown == f'     2 | {line}'
    carets = rest[0] if rest and '^' in rest[0] else ''
    assert bool(carets) is bool(marked)
    if marked:
        assert shown[carets.index('^') :].startswith(marked)


@pytest.mark.parametrize('variable', ['', '1'])
def test_no_color(monkeypatch, variable):
    monkeypatch.setenv('NO_COLOR', variable)
    monkeypatch.setenv('FORCE_COLOR', '1')
    monkeypatch.setenv('TERM', 'xterm')
    console = terminal.make_console()
    with console.capture() as capture:
        terminal.print_verdict(console, Severity.ERROR, 'Do not.')
    assert ('\x1b' in capture.get()) is not variable
