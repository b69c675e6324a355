"""Text of data is printed so that a terminal does not obey it."""

import json
import subprocess
import sys

import pytest

from mmext.utils.printing import (
    printable,
    printable_json,
    printable_name,
    readable,
    say,
)


@pytest.mark.parametrize(
    ('text', 'shown'),
    [
        ('a\x1b[31m\x07\x7f\r', r'a\x1b[31m\x07\x7f\r'),
        ('\x9b2J\u061c\u200e\u202e\u2066', r'\x9b2J\u061c\u200e\u202e\u2066'),
        ('\u2028\ufeff\U000e0041', r'\u2028\ufeff\U000e0041'),
        ('\udcff\ud800', r'\xff\ud800'),
        ('Straße\t犬 👩\u200d🚀 می\u200cشود\n', None),
    ],
)
def test_printable(text, shown):
    assert printable(text) == (text if shown is None else shown)
    assert printable_name('a\n\tb') == r'a\n\tb'
    assert readable('\x1b\udcff') == '\x1b\\xff'


def test_json_keeps_its_meaning():
    value = {'a\x9b\u202e': ['\x1b"\\', 'ü', '\U000e0041']}
    text = printable_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert text == printable(text)
    assert 'ü' in text
    # A byte of a file name.
    assert json.loads(printable_json('"\udcff"')) == r'\xff'


def test_say(capsys):
    say('a\x1b')
    say('b\x9b', error=True)
    assert capsys.readouterr() == ('a\\x1b\n', 'b\\x9b\n')


TOOL = """
import logging, warnings
import mmext.utils.quiet_hosts
from mmengine.logging import MMLogger, print_log
from mmext.utils.cli import run_tool

def main():
    print('\\udcff')
    print_log('printed\\x9b')
    MMLogger.get_current_instance().info('logged %s', '\\x07')
    warnings.warn('warned\\u202e')
    raise RuntimeError('raised\\x1b[2J')

run_tool(main)
"""


def test_a_tool():
    """Logs, warnings and the traceback of a tool, and prints of others."""
    done = subprocess.run(
        [sys.executable, '-c', TOOL], capture_output=True, timeout=60
    )
    assert done.returncode == 1
    first, second, log = done.stdout.decode().splitlines()
    assert (first, second) == (r'\udcff', r'printed\x9b')
    assert log.endswith(r'logged \x07')
    lines = done.stderr.decode().splitlines()
    assert r'UserWarning: warned\u202e' in lines[0]
    assert lines[-1] == r'RuntimeError: raised\x1b[2J'
