"""Entries of many processes come to the one that reads, each once."""

import copy
import multiprocessing
import pickle
import subprocess
import sys
from collections import Counter

import pytest

from mmext.datasets.transforms.label_journal import (
    JournalEntry,
    LabelJournal,
    tally,
)


def write(journal: LabelJournal, name: str, count: int) -> None:
    for index in range(count):
        journal.append(JournalEntry('skipped', name, index, 'ü"\n' * 50))


@pytest.mark.parametrize(('method', 'number'), [('fork', 3), ('spawn', 1)])
def test_no_entry_is_lost(method, number):
    """They write while this one reads."""
    journal, count = LabelJournal(), 300
    context = multiprocessing.get_context(method)
    writers = [
        context.Process(target=write, args=(journal, f'{i}', count))
        for i in range(number)
    ]
    for each in writers:
        each.start()
    entries = []
    while any(each.is_alive() for each in writers):
        entries += journal.drain()
    for each in writers:
        each.join()
        assert each.exitcode == 0
    entries += journal.drain()
    names = [str(i) for i in range(number)]
    assert Counter(each.file for each in entries) == dict.fromkeys(
        names, count
    )
    for name in names:
        pixels = [each.pixels for each in entries if each.file == name]
        assert pixels == list(range(count))
    assert {each.text for each in entries} == {'ü"\n' * 50}
    assert journal.drain() == []


def test_copies_share_the_file():
    journal = LabelJournal()
    for each in (copy.deepcopy(journal), pickle.loads(pickle.dumps(journal))):
        each.append(JournalEntry('warned', 'a'))
    assert len(journal.drain()) == 2
    assert LabelJournal().path != journal.path


def test_makes_no_file_without_entries():
    journal = LabelJournal()
    assert journal.drain() == []
    assert not journal.path.exists()


def test_tally_keeps_files_and_actions_apart():
    found = tally(
        [
            JournalEntry('ignored', 'a', 3, 'first'),
            JournalEntry('skipped', 'a', 0, 'other'),
            JournalEntry('ignored', 'a', 4, 'later'),
        ]
    )
    assert list(found) == [('ignored', 'a'), ('skipped', 'a')]
    one = found['ignored', 'a']
    assert (one.times, one.pixels, one.text) == (2, 7, 'first')


def test_what_nobody_has_read_is_told_at_the_end(tmp_path):
    code = (
        'import os, tempfile\n'
        f'tempfile.tempdir = {str(tmp_path)!r}\n'
        'from mmext.datasets.transforms.label_journal import *\n'
        'read, left = LabelJournal(), LabelJournal()\n'
        'for each in (read, left, left):\n'
        "    each.append(JournalEntry('skipped', 'a.png'))\n"
        'read.drain()\n'
        'if os.fork() == 0:\n'
        '    raise SystemExit(0)\n'
        'os.wait()\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [x for x in done.stderr.splitlines() if 'ValidateLabels' in x]
    assert len(told) == 1
    assert '2 time(s), in 1 file(s) such as a.png' in told[0]
    assert 'mmext.LabelReportHook' in told[0]
    assert list(tmp_path.iterdir()) == []
