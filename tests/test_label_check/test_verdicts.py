"""Verdicts that are kept, against samples judged one by one."""

import sqlite3
import threading
import zlib
from collections import Counter
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_facts import EXPECTED, mask_of, sample_of
from msgspec.structs import replace

from mmext.label_check import BoxFacts, ImageFacts, Severity, verdicts
from mmext.label_check.rules import RULES, Rule
from mmext.label_check.rules.registry import found
from mmext.label_check.store import FactStore, merge_stores
from mmext.label_check.totals import SplitTotals
from mmext.label_check.verdicts import code_digest, judge_samples
from mmext.label_check.work import Result, WorkItem, reader_key, stored_kind

ALL = [rule for rule in RULES.values() if rule.scope == 'sample']
NUMBER = 1100  # more than two blocks


@pytest.fixture
def store(tmp_path):
    with FactStore(tmp_path / 'facts.sqlite') as opened:
        yield opened


def items_of(sample):
    for path, kind in ((sample.mask, 'mask'), (sample.image, 'image')):
        if path:
            yield WorkItem(path=path, kind=kind)


def facts_of(split, sample, files):
    left = iter(files)
    known = {'mask': next(left)} if sample.mask else {}
    known |= {'image': next(left)} if sample.image else {}
    return replace(sample_of(split=split), sample=sample, **known)


def put(store, facts):
    """Store the facts of a sample's files."""
    rows = []
    for item in items_of(facts.sample):
        packed = msgspec.msgpack.encode(getattr(facts, item.kind))
        rows.append(
            Result(
                path=item.path,
                kind=stored_kind(item),
                reader=reader_key(item),
                stamp='1',
                facts=packed,
                failed=False,
            )
        )
    store.write(rows)


@pytest.fixture
def samples(store):
    """Every seventh mask has a wrong value."""
    facts = [sample_of(number) for number in range(NUMBER)]
    facts[::7] = [
        replace(each, mask=mask_of({0: 60, 90: 40})) for each in facts[::7]
    ]
    for each in facts:
        put(store, each)
    return facts


class Watch:
    """Calls of a rule, and what the judge says."""

    def __init__(self, monkeypatch):
        self.judged = 0
        plain = verdicts._Judge._made

        def made(judge, block):
            self.judged += len(block.samples)
            return plain(judge, block)

        monkeypatch.setattr(verdicts._Judge, '_made', made)

    def __call__(self, facts, store, rules=ALL, expected=EXPECTED, boxes=True):
        totals = SplitTotals(split=expected.split)
        findings = list(
            judge_samples(
                [each.sample for each in facts],
                store,
                rules,
                expected,
                totals,
                items_of=items_of,
                facts_of=partial(facts_of, expected.split),
                boxes=boxes,
            )
        )
        rows = totals.images.rows(range(len(totals.images)))
        totals.images = None
        number, self.judged = self.judged, 0
        return msgspec.json.encode((findings, totals, rows)), number


@pytest.fixture
def judge(monkeypatch):
    return Watch(monkeypatch)


def one_by_one(facts, rules=ALL, expected=EXPECTED):
    totals = SplitTotals(split=expected.split)
    findings, rows = [], []
    for each in facts:
        totals.add(each)
        rows.append(
            (each.image.digest, each.image.fingerprint, each.sample.image)
        )
        for rule in rules:
            findings += rule.check(each, expected)
    return msgspec.json.encode((findings, totals, rows))


def test_the_same_with_and_without_what_was_kept(samples, store, judge):
    expected = one_by_one(samples)
    assert judge(samples, store) == (expected, NUMBER)
    assert judge(samples, store) == (expected, 0)
    with FactStore(store.path, read_only=True) as reader:
        assert judge(samples, reader) == (expected, 0)


def test_changed_facts_are_judged_anew(samples, store, judge):
    judge(samples, store)
    samples[600] = replace(samples[600], mask=mask_of({77: 100}))
    put(store, samples[600])
    found, judged = judge(samples, store)
    assert found == one_by_one(samples)
    assert 0 < judged < NUMBER
    assert b'label 77' in found


def test_a_changed_sample_is_judged_anew(samples, store, judge):
    judge(samples, store)
    sample = replace(samples[5].sample, width=11, height=10)
    samples[5] = replace(samples[5], sample=sample)
    found, judged = judge(samples, store)
    assert found == one_by_one(samples)
    assert 0 < judged < NUMBER
    assert b'PAIR004' in found


def test_other_order_and_fewer_samples(samples, store, judge):
    judge(samples, store)
    for facts in (samples[::-1], samples[1:], samples[:1]):
        found, judged = judge(facts, store)
        assert found == one_by_one(facts)
        assert judged > 0


@pytest.mark.parametrize(
    'change',
    [
        {'num_classes': 2},
        {'ignore_index': None},
        {'label_map': ((0, 1),)},
        {'loader_backend': 'cv2'},
        {'classes': ('a', 'b', 'c')},
    ],
    ids=lambda change: next(iter(change)),
)
def test_changed_expectations(samples, store, judge, change: dict):
    judge(samples, store)
    other = replace(EXPECTED, **change)
    assert judge(samples, store, expected=other) == (
        one_by_one(samples, expected=other),
        NUMBER,
    )
    assert judge(samples, store, expected=other)[1] == 0
    assert judge(samples, store)[1] == 0


def test_other_rules(samples, store, judge):
    judge(samples, store)
    some = [rule for rule in ALL if rule.id.startswith('PAIR')]
    assert judge(samples, store, some) == (one_by_one(samples, some), NUMBER)
    assert judge(samples, store)[1] == 0
    assert judge(samples, store, boxes=False)[1] == NUMBER


def test_changed_code(samples, store, judge, monkeypatch):
    judge(samples, store)
    monkeypatch.setattr(verdicts, '_own_code', lambda: b'other')
    assert judge(samples, store)[1] == NUMBER
    monkeypatch.setattr(verdicts, '_own_code', lambda: b'')
    for _ in range(2):
        assert judge(samples, store) == (one_by_one(samples), NUMBER)


def test_digest_of_code_changes_with_names_and_contents(tmp_path):
    file = tmp_path / 'a' / 'b.py'
    file.parent.mkdir()
    seen = [code_digest(tmp_path)]
    file.write_text('x = 1')
    seen.append(code_digest(tmp_path))
    file.write_text('x = 2')
    seen.append(code_digest(tmp_path))
    (tmp_path / 'notes.txt').write_text('no code')
    assert code_digest(tmp_path) == seen[-1]
    file.rename(tmp_path / 'b.py')
    seen.append(code_digest(tmp_path))
    assert len(set(seen)) == 4


def foreign(facts, expected):
    """A rule of somebody else."""
    yield replace(
        found('seen', file=facts.sample.mask), rule='XX001', split=facts.split
    )


def test_rules_from_elsewhere_are_never_remembered(samples, store, judge):
    rule = Rule(
        id='XX001',
        title='seen',
        severity=Severity.INFO,
        remedy='',
        scope='sample',
        check=foreign,
    )
    rules = [*ALL, rule]
    for _ in range(2):
        assert judge(samples, store, rules) == (
            one_by_one(samples, rules),
            NUMBER,
        )
    assert list(store.all_verdicts()) == []


def test_names_that_are_no_text_are_judged_each_time(store, judge):
    sample = replace(sample_of().sample, mask='a\udcff.png')
    facts = [replace(sample_of(), sample=sample)]
    put(store, facts[0])
    for _ in range(2):
        assert judge(facts, store) == (one_by_one(facts), 1)


def test_damaged_verdicts_are_replaced(samples, store, judge):
    expected, _ = judge(samples, store)
    rows = list(store.all_verdicts())
    assert len(rows) == 3
    store.write_verdicts(
        [
            (rows[0][0], b'no zlib'),
            (rows[1][0], zlib.compress(b'\xc1')),
        ]
    )
    found, judged = judge(samples, store)
    assert found == expected
    assert judged > NUMBER // 3
    assert judge(samples, store) == (expected, 0)


def test_an_interrupted_run_keeps_what_was_judged(samples, store, judge):
    totals = SplitTotals(split='train')
    running = judge_samples(
        [each.sample for each in samples],
        store,
        ALL,
        EXPECTED,
        totals,
        items_of=items_of,
        facts_of=partial(facts_of, 'train'),
    )
    next(running)
    running.close()
    assert len(list(store.all_verdicts())) == 1
    judge.judged = 0
    found, judged = judge(samples, store)
    assert found == one_by_one(samples)
    assert 0 < judged < NUMBER


def test_a_write_that_fails_leaves_nothing_behind(samples, store, judge):
    class Broken(Exception):
        pass

    def rows():
        yield b'key', b'verdict'
        raise Broken

    with pytest.raises(Broken):
        store.write_verdicts(rows())
    assert store.verdict(b'key') is None
    assert judge(samples, store)[0] == one_by_one(samples)


def test_two_processes_on_one_store(samples, store, judge):
    """Threads with connections of their own, as processes have."""
    expected = one_by_one(samples)
    done = []

    def work():
        with FactStore(store.path) as own:
            for _ in range(3):
                done.append(judge(samples, own)[0])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [expected] * 9


def test_oldest_verdicts_go(store, monkeypatch):
    clock = iter(range(0, 10**9, 10**6))
    monkeypatch.setattr('mmext.label_check.store.time.time', clock.__next__)
    monkeypatch.setattr('mmext.label_check.store.MAX_VERDICTS', 3)
    store.write_verdicts([(b'a', b'1'), (b'b', b'2')])
    store.write_verdicts([(b'c', b'3')], used=[b'a'])
    store.write_verdicts([(b'd', b'4')])
    assert {key for key, _ in store.all_verdicts()} == {b'a', b'c', b'd'}


def test_merged_stores_have_the_verdicts(samples, store, judge, tmp_path):
    expected, _ = judge(samples, store)
    other = tmp_path / 'other.sqlite'
    FactStore(other).close()
    merge_stores([other, store.path], tmp_path / 'all.sqlite')
    with FactStore(tmp_path / 'all.sqlite') as merged:
        assert judge(samples, merged) == (expected, 0)


def test_a_store_of_version_1(samples, store, judge, tmp_path):
    """It is read as it is, and brought up to date to be written."""
    expected, _ = judge(samples, store)
    store.close()
    db = sqlite3.connect(store.path)
    db.execute('DROP TABLE verdicts')
    db.execute('PRAGMA user_version = 1')
    db.close()
    with FactStore(store.path, read_only=True) as old:
        assert judge(samples, old) == (expected, NUMBER)
        assert list(old.all_verdicts()) == []
    with FactStore(store.path) as new:
        assert len(new) == 2 * NUMBER
        assert judge(samples, new) == (expected, NUMBER)
        assert judge(samples, new) == (expected, 0)


BOX = BoxFacts(box=(-5.0, 2.0, 40.0, 3.0), label=9, class_name='?')


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_a_rule_needs_changes_nothing(data):
    """Where a sample lacks it, the rule has nothing to say."""
    draw = data.draw
    facts = sample_of(
        mask=draw(
            st.sampled_from(
                [None, mask_of({9: 100}), mask_of({0: 9}, error='missing: a')]
            )
        ),
        image=draw(
            st.sampled_from([None, ImageFacts(width=4, height=2, mode='L')])
        ),
        sample=draw(
            st.sampled_from(
                [{}, {'boxes': (BOX, BOX), 'width': 10, 'height': 10}]
            )
        ),
    )
    if facts.mask is None or facts.image is None:
        lacks = {'mask': ''} if facts.mask is None else {}
        lacks |= {'image': ''} if facts.image is None else {}
        facts = replace(facts, sample=replace(facts.sample, **lacks))
    has = {
        'mask': facts.mask,
        'image': facts.image,
        'annotation': facts.annotation,
        'boxes': facts.sample.boxes,
        '': True,
    }
    for rule in ALL:
        if not has[rule.needs]:
            assert list(rule.check(facts, EXPECTED)) == []


def test_most_rules_say_what_they_need():
    assert Counter(rule.needs == '' for rule in ALL)[True] <= 3
