"""Whose a file is, its version, and who may write."""

import sqlite3
import threading

import pytest

from mmext.label_check._store_file import SCHEMA_VERSION
from mmext.label_check.store import FactStore


def test_refuses_files_that_are_not_ours(tmp_path):
    text = tmp_path / 'notes.txt'
    text.write_text('no data base, and longer than a header' * 10)
    before = text.read_bytes()
    with pytest.raises(ValueError, match=r'notes\.txt must be a store'):
        FactStore(text)
    assert text.read_bytes() == before
    other = tmp_path / 'other.db'
    db = sqlite3.connect(other)
    db.execute('CREATE TABLE facts (a)')
    db.commit()
    db.close()
    before = other.read_bytes()
    for read_only in False, True:
        with pytest.raises(ValueError, match=r'must be a store.*1 tables'):
            FactStore(other, read_only=read_only)
    assert other.read_bytes() == before


def test_refuses_another_version_and_an_empty_file(tmp_path):
    path = tmp_path / 'facts.db'
    FactStore(path).close()
    db = sqlite3.connect(path)
    db.execute('PRAGMA user_version = 3')
    db.close()
    with pytest.raises(ValueError, match='version 1 to 2, got version 3'):
        FactStore(path)
    empty = tmp_path / 'empty.db'
    empty.touch()
    with pytest.raises(ValueError, match='it is empty'):
        FactStore(empty, read_only=True)
    FactStore(empty).close()
    with FactStore(empty, read_only=True) as store:
        assert len(store) == 0


def test_says_what_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match='there is no store at'):
        FactStore(tmp_path / 'no.db', read_only=True)
    with pytest.raises(FileNotFoundError, match='folder of the store'):
        FactStore(tmp_path / 'no' / 'facts.db')


def test_an_old_file_is_brought_up_to_date_once(tmp_path):
    path = tmp_path / 'facts.db'
    FactStore(path).close()
    db = sqlite3.connect(path)
    db.execute('DROP TABLE verdicts')
    db.execute('PRAGMA user_version = 1')
    db.close()
    with FactStore(path, read_only=True) as old:
        assert old.version == 1
    seen = []

    def work():
        with FactStore(path) as store:
            store.write_verdicts([(b'key', b'verdict')])
            seen.append((store.version, store.verdict(b'key')))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(SCHEMA_VERSION, b'verdict')] * 4


class Broken(Exception):
    """Raised in the middle."""


def write_half(store):
    with store.transaction():
        store.db.execute("INSERT INTO verdicts VALUES ('a', 1, 'b')")
        raise Broken


def test_a_transaction_is_all_or_nothing(tmp_path):
    path = tmp_path / 'facts.db'
    with FactStore(path) as store:
        with pytest.raises(Broken):
            write_half(store)
        assert store.value('SELECT count(*) FROM verdicts') == 0
        reader = FactStore(path, read_only=True)
        with reader, pytest.raises(PermissionError, match='read_only=True'):
            reader.write_verdicts([])
