"""A list in a temporary file."""

import os

import pytest

from mmext.label_check.spool import Spool


@pytest.mark.parametrize('number', [0, 1, 1023, 1024, 5000])
def test_rows(number):
    rows = [(f'name {index}', index, '') for index in range(number)]
    spool = Spool(iter(rows))
    assert len(spool) == number
    assert [tuple(row) for row in spool] == rows
    assert [tuple(row) for row in spool] == rows


def test_names_of_any_bytes():
    name = os.fsdecode(b'a\xff\xc3\xa9.png')
    (row,) = Spool([(name, 'caf\u00e9')])
    assert row == [name, 'caf\u00e9']


def test_two_at_a_time():
    spool = Spool((str(index),) for index in range(3000))
    pairs = list(zip(spool, spool))
    assert len(pairs) == 3000
    assert all(first == second for first, second in pairs)


def test_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    spool = Spool([('a',)])
    assert list(tmp_path.iterdir()) == []
    number = spool._file
    del spool
    with pytest.raises(OSError, match='Bad file descriptor'):
        os.fstat(number)
