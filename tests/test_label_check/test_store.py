"""The store, against dictionaries, other SQLite files and a second reader."""

import random
import sqlite3

import pytest

from mmext.label_check.store import FactStore, Stored, merge_stores
from mmext.label_check.work import Result


def row(path: str, *, kind='mask', reader='1', stamp='9', facts=b'f', **more):
    return Result(
        path=path,
        kind=kind,
        reader=reader,
        stamp=stamp,
        facts=facts,
        failed=more.get('failed', False),
    )


@pytest.fixture
def store(tmp_path):
    with FactStore(tmp_path / 'facts.db') as store:
        yield store


def test_gives_back_what_was_written_after_it_was_closed(tmp_path):
    with FactStore(tmp_path / 'facts.db') as store:
        store.write([row('a', failed=True), row('a', kind='image', stamp='')])
    with FactStore(tmp_path / 'facts.db') as store:
        assert store.stored('mask', ['a', 'b']) == {
            'a': Stored('1', '9', True)
        }
        assert store.stored('image', ['a']) == {'a': Stored('1', '', False)}
        assert store.facts('mask', ['a', 'b']) == {'a': b'f'}
        assert len(store) == 2


def test_thousands_of_keys_against_a_dictionary(store):
    rng = random.Random(0)
    names = [f'folder/{rng.randrange(10**6)}.png' for _ in range(5000)]
    expected = {}
    for begin in range(0, 5000, 700):
        part = names[begin : begin + 700]
        facts = [rng.randbytes(rng.randrange(1, 40)) for _ in part]
        store.write([row(n, facts=f) for n, f in zip(part, facts)])
        expected.update(zip(part, facts))
    assert store.facts('mask', names) == expected
    assert store.facts('image', names) == {}
    in_order = [(r.path, r.facts) for r in store.rows()]
    assert in_order == sorted(expected.items())


def test_rows_keep_every_field_and_choose_a_kind(store):
    rows = [row('b', kind='image', failed=True), row('a'), row('b')]
    store.write(rows)
    assert list(store.rows()) == [rows[1], rows[0], rows[2]]
    assert list(store.rows('mask')) == [rows[1], rows[2]]


def test_rows_while_the_store_is_written(store):
    store.write([row(f'{i:04}') for i in range(1200)])
    seen = []
    for result in store.rows():
        seen.append(result.path)
        if len(seen) == 1:
            store.write([row('0000', facts=b'new'), row('9999')])
    assert seen == [*(f'{i:04}' for i in range(1200)), '9999']


def test_names_that_are_no_valid_text(store):
    names = ['a\udcff.png', 'ü.png', "it's;--.png", 'new\nline', '']
    store.write(
        [
            row(name, facts=name.encode('utf-8', 'replace') or b'0')
            for name in names
        ]
    )
    assert set(store.facts('mask', names)) == set(names)
    assert {r.path for r in store.rows()} == set(names)


def test_missing_wants_same_stamp_and_reader(store):
    store.write([row('same'), row('changed'), row('old', reader='0')])
    stamps = {'new': '9', 'same': '9', 'changed': '8', 'old': '9'}
    assert store.missing('mask', '1', stamps) == ['new', 'changed', 'old']
    store.write([row('same', stamp='')])
    assert store.missing('mask', '1', {'same': ''}) == ['same']


def test_a_result_without_facts_leaves_what_is_stored(store):
    store.write([row('a', facts=b'old')])
    store.write([row('a', facts=b''), row('b', facts=b'')])
    assert store.facts('mask', ['a', 'b']) == {'a': b'old'}


def test_a_write_that_fails_writes_nothing(store):
    with pytest.raises(sqlite3.IntegrityError):
        store.write([row('a'), row('b', reader=None)])
    assert len(store) == 0
    store.write([row('a')])
    assert len(store) == 1


def test_a_second_reader_sees_what_is_written(store):
    with FactStore(store.path, read_only=True) as reader:
        assert len(reader) == 0
        store.write([row('a')])
        assert reader.facts('mask', ['a']) == {'a': b'f'}
        with pytest.raises(PermissionError, match='read_only=True'):
            reader.write([row('b')])


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
    db.execute('PRAGMA user_version = 2')
    db.close()
    with pytest.raises(ValueError, match='version 1, got version 2'):
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


def test_merge_is_the_union_and_the_last_wins(tmp_path):
    shards = [
        [row('a'), row('b', facts=b'old')],
        [row('b', facts=b'new'), row('c', kind='image', failed=True)],
    ]
    paths = [tmp_path / f'{i}.db' for i in range(2)]
    for path, rows in zip(paths, shards):
        with FactStore(path) as store:
            store.write(rows)
    out = tmp_path / 'all.db'
    (tmp_path / 'all.db.part').write_text('left by a run that was killed')
    assert merge_stores(paths, out) == 3
    with FactStore(out, read_only=True) as store:
        assert list(store.rows()) == [shards[0][0], *shards[1]]
    assert not [p for p in tmp_path.iterdir() if '.part' in p.name]


def test_merge_takes_no_log_of_a_store_that_was_deleted(tmp_path):
    out = tmp_path / 'all.db'
    FactStore(tmp_path / 'a.db').close()
    (tmp_path / 'all.db-wal').write_bytes(b'left behind')
    assert merge_stores([tmp_path / 'a.db'], out) == 0
    assert not (tmp_path / 'all.db-wal').exists()


def test_merge_rejects(tmp_path):
    FactStore(tmp_path / 'a.db').close()
    with pytest.raises(ValueError, match='at least one file'):
        merge_stores([], tmp_path / 'out.db')
    with pytest.raises(FileExistsError, match='out must not exist'):
        merge_stores([tmp_path / 'a.db'], tmp_path / 'a.db')
    with pytest.raises(FileNotFoundError, match='there is no store at'):
        merge_stores([tmp_path / 'b.db'], tmp_path / 'out.db')
    (tmp_path / 'c.db').write_text('none' * 100)
    with pytest.raises(ValueError, match='must be a store'):
        merge_stores([tmp_path / 'c.db'], tmp_path / 'out.db')
    assert not (tmp_path / 'out.db').exists()
