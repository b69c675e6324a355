"""One line a change, and groups of what is left."""

import json

import msgspec
import pytest

from mmext.checks.labels.fix.change_log import (
    Change,
    ChangeLog,
    FixSummary,
    Left,
    LeftGroup,
    NewPlace,
    in_groups,
)
from mmext.checks.labels.fix.out_tree import SampleList


def test_lines(tmp_path):
    path = tmp_path / 'fixes.jsonl'
    changes = [
        Change(
            rule='DET005', file='ä.xml', was='1', now='2', place='object[0]'
        ),
        Change(rule='DET001', count=7),
        Change(rule='DET005'),
    ]
    with ChangeLog(path) as log:
        log.add(changes[:1])
        log.add(changes[1:])
    assert log.by_rule == {'DET005': 2, 'DET001': 1}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line['rule'] for line in lines] == ['DET005', 'DET001', 'DET005']
    assert lines[0]['file'] == 'ä.xml'
    assert list(lines[0]) == list(lines[1])
    with pytest.raises(FileExistsError), ChangeLog(path):
        pass


def test_groups():
    left = [
        Left(rule='B', split='val', file='2', reason='why'),
        Left(rule='A', split='val', file='1', reason='why'),
        Left(rule='B', split='val', file='1', reason='why', place='x'),
        Left(rule='B', split='val', file='1', reason='why', place='y'),
        Left(rule='B', split='val', file='1', reason='other'),
    ]
    groups = in_groups(left)
    assert [(each.rule, each.reason, each.files) for each in groups] == [
        ('A', 'why', ('1',)),
        ('B', 'other', ('1',)),
        ('B', 'why', ('1', '2')),
    ]


PLACE = NewPlace(split='train', key='ann_file', was='old.json', now='new.json')
SUMMARY = FixSummary(
    out='out',
    num_files=1200,
    num_fixed=1,
    changes={'SEG011': 1},
    places=(PLACE,),
    lists=(
        SampleList(
            split='train',
            excluded=1,
            exclude_file='exclude_train.txt',
            include_file='include_train.txt',
        ),
    ),
    not_repaired=(
        LeftGroup(
            rule='SEG001', split='val', reason='unknown', files=('a', 'b')
        ),
    ),
)


def test_text():
    assert SUMMARY.text().splitlines() == [
        'repaired 1 of 1,200 label files; all of them are in out, each '
        'change is in fixes.jsonl',
        '  SEG011  1 x palette mask, which OpenCV turns into colours',
        'not repaired (fixes.json names all files):',
        '  SEG001  val, 2 files: unknown',
        'to train with the repaired files, set',
        "  train: ann_file='new.json', which was 'old.json'",
        '  train: exclude_train.txt lists 1 sample that cannot be trained '
        'with; include_train.txt lists the others, for ann_file',
    ]


def test_no_settings_for_files_that_are_as_they_were():
    summary = FixSummary(
        out='out', num_files=3, num_fixed=0, changes={}, places=(PLACE,)
    )
    assert summary.text() == (
        'repaired 0 of 3 label files; all of them are in out, each change is '
        'in fixes.jsonl'
    )


def test_round_trip():
    packed = msgspec.json.encode(SUMMARY)
    assert msgspec.json.decode(packed, type=FixSummary) == SUMMARY
