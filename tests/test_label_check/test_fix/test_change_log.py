"""One line a change, and groups of what is left."""

import json

import pytest

from mmext.label_check.fix.change_log import (
    Change,
    ChangeLog,
    Left,
    in_groups,
)


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
