"""Errors name files, and survive the ways errors travel."""

import multiprocessing
import pickle
import subprocess
import sys
from collections import Counter

import pytest

from mmext.datasets.transforms import LabelError
from mmext.datasets.transforms.label_problem import (
    JournalEntry,
    LabelJournal,
    LabelProblem,
    describe,
)

MAP = LabelProblem('gt_seg_map', 'three are wrong.', 'save anew', 3)
BOX = LabelProblem('gt_bboxes', 'one is wrong', 'draw anew')


def test_error_is_a_value_error_and_pickles():
    error = LabelError('text', [MAP, BOX])
    assert isinstance(error, ValueError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.problems) == ('text', (MAP, BOX))
    # As PyTorch makes it anew from the text of a worker's.
    assert LabelError(msg := 'from a worker').args == (msg,)


def test_describe_names_each_file_once():
    results = {'img_path': 'a.jpg', 'seg_map_path': 'a.png'}
    lines = describe(results, [MAP, MAP]).splitlines()
    assert lines[0] == '2 label problems in a.png (image a.jpg)'
    assert lines[1:3] == ['  gt_seg_map: three are wrong.', '    save anew']
    assert describe(results, [BOX]).startswith('1 label problem in a.jpg\n')
    both = describe(results, [MAP, BOX]).splitlines()[0]
    assert both == '2 label problems in a.png, a.jpg'
    before = LabelProblem('gt_seg_map_from', 'one is wrong', 'save anew')
    results['seg_map_from_path'] = 'from.png'
    assert ' in from.png (image' in describe(results, [before])


def write(journal: LabelJournal, name: str, count: int) -> None:
    for index in range(count):
        journal.append(JournalEntry('skipped', name, index, 'ü"\n' * 50))


@pytest.mark.parametrize(
    ('method', 'number'),
    [('fork', 3), pytest.param('spawn', 1, marks=pytest.mark.slow)],
)
def test_no_entry_is_lost(method, number):
    """They write while this one reads."""
    journal, count = LabelJournal(), 300
    context = multiprocessing.get_context(method)
    writers = [
        context.Process(target=write, args=(journal, f'{i}', count))
        for i in range(number)
    ]
    for writer in writers:
        writer.start()
    entries = []
    while any(writer.is_alive() for writer in writers):
        entries += journal.drain()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    entries += journal.drain()
    names = [str(i) for i in range(number)]
    assert Counter(entry.file for entry in entries) == dict.fromkeys(
        names, count
    )
    for name in names:
        pixels = [entry.pixels for entry in entries if entry.file == name]
        assert pixels == list(range(count))
    assert {entry.text for entry in entries} == {'ü"\n' * 50}
    assert journal.drain() == []


def test_makes_no_file_without_entries():
    journal = LabelJournal()
    assert journal.drain() == []
    assert not journal.path.exists()


@pytest.mark.slow
def test_what_nobody_has_read_is_told_at_the_end(tmp_path):
    code = (
        'import os, tempfile\n'
        f'tempfile.tempdir = {str(tmp_path)!r}\n'
        'from mmext.datasets.transforms.label_problem import *\n'
        'read, left = LabelJournal(), LabelJournal()\n'
        'for journal in (read, left, left):\n'
        "    journal.append(JournalEntry('skipped', 'a.png'))\n"
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
    lines = [x for x in done.stderr.splitlines() if 'ValidateLabels' in x]
    assert len(lines) == 1
    assert '2 time(s), in 1 file(s) such as a.png' in lines[0]
    assert 'mmext.LabelReportHook' in lines[0]
    assert list(tmp_path.iterdir()) == []
