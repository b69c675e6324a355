"""The store, against dictionaries, other SQLite files and a second reader."""

import random
import sqlite3
import threading

import pytest

from mmext.checks.labels.store import FactStore, Result


def row(path: str, *, facts=b'f'):
    return Result(path=path, kind='mask', stamp='9', facts=facts)


def facts_of(store, names, kind='mask'):
    return store.facts([(name, kind) for name in names])


@pytest.fixture
def store(tmp_path):
    with FactStore(tmp_path / 'facts.db') as store:
        yield store


def test_thousands_of_keys_against_a_dictionary(store):
    rng = random.Random(0)
    names = [f'folder/{rng.randrange(10**6)}.png' for _ in range(5000)]
    expected = {}
    for begin in range(0, 5000, 700):
        part = names[begin : begin + 700]
        facts = [rng.randbytes(rng.randrange(1, 40)) for _ in part]
        store.write([row(n, facts=f) for n, f in zip(part, facts)])
        expected.update(zip(part, facts))
    assert facts_of(store, names) == [expected[name] for name in names]
    assert facts_of(store, names, 'image') == [None] * 5000


def test_a_result_without_facts_leaves_what_is_stored(store):
    store.write([row('a', facts=b'old')])
    store.write([row('a', facts=b''), row('b', facts=b'')])
    assert facts_of(store, ['a', 'b']) == [b'old', None]


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
    with pytest.raises(ValueError, match=r'must be a store.*1 tables'):
        FactStore(other)
    assert other.read_bytes() == before


@pytest.mark.parametrize('version', [6, 8])
def test_a_file_of_another_version_is_made_anew_once(tmp_path, version):
    path = tmp_path / 'facts.db'
    with FactStore(path) as store:
        store.write([row('old')])
    db = sqlite3.connect(path)
    db.execute(f'PRAGMA user_version = {version}')
    db.close()
    seen = []

    def work(name):
        with FactStore(path) as store:
            store.write([row(name)])
            seen.extend(facts_of(store, ['old', name]))

    threads = [threading.Thread(target=work, args=(n,)) for n in 'abcd']
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [None, b'f'] * 4
    with FactStore(path) as store:
        assert len(store) == 4
