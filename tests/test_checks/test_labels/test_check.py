"""Files on a disk to a report."""

from functools import partial

import numpy as np
import pytest
from helpers.label_data import write_pairs
from helpers.label_facts import EXPECTED as OF_FACTS
from helpers.label_facts import mask_of, sample_of
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from PIL import Image

from mmext.checks.findings import Severity
from mmext.checks.labels import Expectations, check_sources
from mmext.checks.labels.backends import run_joblib
from mmext.checks.labels.facts import (
    BoxFacts,
    ErrorKind,
    ImageFacts,
    ReadError,
)
from mmext.checks.labels.report import Report, report_json
from mmext.checks.labels.rules import RULES
from mmext.checks.labels.rules.registry import select_rules
from mmext.checks.labels.scan import sample_facts, scan, work_items
from mmext.checks.labels.sources import split_of_folders
from mmext.checks.labels.store import FactStore

EXPECTED = Expectations(num_classes=3, classes=('a', 'b', 'c'))


@pytest.fixture
def data(tmp_path):
    return write_pairs(tmp_path / 'data')


@pytest.fixture
def store(tmp_path):
    with FactStore(tmp_path / 'facts.sqlite') as opened:
        yield opened


def source(folder, expected=EXPECTED):
    return split_of_folders(folder / 'masks', folder / 'images', expected)


def errors(report: Report) -> dict:
    return {
        group.rule: group
        for group in report.groups
        if group.severity is Severity.ERROR
    }


def plant(folder, name: str, value: int) -> None:
    path = folder / 'masks' / name
    mask = np.array(Image.open(path))
    mask[3, 5:9] = value
    Image.fromarray(mask).save(path)


def test_clean_data(data, store):
    report = check_sources([source(data)], store)
    assert report.groups == ()
    (split,) = report.splits
    assert (split.num_samples, split.num_images, split.num_masks) == (6, 6, 6)
    masks = [np.array(Image.open(path)) for path in (data / 'masks').iterdir()]
    for row in split.classes:
        assert row.pixels == sum(int((m == row.label).sum()) for m in masks)
        assert (row.masks, row.area) == (6, 6 * 24 * 32)


def test_planted_value(data, store):
    plant(data, '2.png', 7)
    plant(data, '4.png', 7)
    found = errors(check_sources([source(data)], store))
    assert set(found) == {'SEG001'}
    group = found['SEG001']
    assert (group.value, group.num_files, group.count) == ('7', 2, 8)
    assert [each.file[-5:] for each in group.examples] == ['2.png', '4.png']
    assert group.examples[0].place == 'y=3, x=5'


def test_broken_missing_and_lonely_files(data, store):
    (data / 'masks' / '1.png').write_bytes(b'no picture')
    (data / 'masks' / '3.png').unlink()
    content = (data / 'images' / '5.png').read_bytes()
    (data / 'images' / '5.png').write_bytes(content[: len(content) // 2])
    found = errors(check_sources([source(data)], store))
    files = {
        each.file[-12:] for group in found.values() for each in group.examples
    }
    assert len(found) >= 3
    assert {name.rpartition('/')[2] for name in files} == {
        '1.png',
        '3.png',
        '5.png',
    }


def test_leakage_between_splits(data, tmp_path, store):
    other = write_pairs(tmp_path / 'val', number=2)
    val = split_of_folders(
        other / 'masks',
        other / 'images',
        Expectations(split='val', num_classes=3, classes=('a', 'b', 'c')),
    )
    found = errors(check_sources([source(data), val], store))
    assert set(found) == {'DUP002'}


def test_warm_run_reads_nothing_and_says_the_same(data, store):
    plant(data, '2.png', 7)
    first = check_sources([source(data)], store)
    assert scan(work_items([source(data)]), store) == 0
    assert report_json(check_sources([source(data)], store)) == report_json(
        first
    )


def test_changed_files_are_read_again(data, store):
    assert not errors(check_sources([source(data)], store))
    plant(data, '0.png', 9)
    assert set(errors(check_sources([source(data)], store))) == {'SEG001'}


def test_other_expectations_need_no_reading(data, store):
    check_sources([source(data)], store)
    narrow = Expectations(num_classes=2, classes=('a', 'b'))
    assert scan(work_items([source(data, narrow)]), store) == 0
    found = errors(check_sources([source(data, narrow)], store))
    assert found['SEG001'].value == '2'


def test_several_processes_say_the_same(data, store, tmp_path):
    plant(data, '2.png', 7)
    run = partial(run_joblib, workers=2)
    with FactStore(tmp_path / 'other.sqlite') as other:
        assert report_json(
            check_sources([source(data)], other, run=run)
        ) == report_json(check_sources([source(data)], store))


def test_rules_can_be_chosen(data, store):
    plant(data, '2.png', 7)
    rules = select_rules(['PAIR'])
    report = check_sources([source(data)], store, rules=rules)
    assert report.groups == ()
    assert all(name.startswith('PAIR') for name in report.rules)


def test_facts_belong_to_their_samples(data, store):
    (data / 'images' / '2.png').unlink()
    scan(work_items([source(data)]), store)
    for index, facts in enumerate(sample_facts(source(data), store)):
        assert facts.sample.index == index
        assert facts.mask.width == 32
        assert (facts.image is None) == (index == 2)


def test_rejects_two_splits_of_one_name(data, store):
    with pytest.raises(ValueError, match='must have different names'):
        check_sources([source(data), source(data)], store)


BOX = BoxFacts(box=(-5.0, 2.0, 40.0, 3.0), label=9, class_name='?')


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_a_rule_needs_changes_nothing(data):
    """Where a sample lacks it, the rule has nothing to say."""
    draw = data.draw
    facts = sample_of(
        mask=draw(
            st.sampled_from(
                [
                    None,
                    mask_of({9: 100}),
                    mask_of({0: 9}, error=ReadError(ErrorKind.MISSING, 'a')),
                ]
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
        'yolo': facts.yolo,
        'boxes': facts.sample.boxes,
        '': True,
    }
    for rule in RULES.values():
        if rule.scope != 'sample':
            continue
        if not has[rule.needs]:
            assert list(rule.check(facts, OF_FACTS)) == []


def test_most_rules_say_what_they_need():
    # Those of arrays look at what there is of picture, depth and normals.
    rules = [
        rule
        for rule in RULES.values()
        if rule.scope == 'sample' and not rule.id.startswith('MTL')
    ]
    assert sum(rule.needs == '' for rule in rules) <= 3


def remedy_of(tmp_path, store, values: list[int]) -> str:
    """Remedy for label maps with these values, one row of pixels each."""
    data = write_pairs(tmp_path / 'causes', number=1)
    rows = np.repeat(np.array(values, np.uint8)[:, None], 32, axis=1)
    Image.fromarray(rows).save(data / 'masks' / '0.png')
    (data / 'images' / '0.png').unlink()
    found = errors(check_sources([source(data)], store))
    return found['SEG001'].remedy if 'SEG001' in found else ''


@pytest.mark.parametrize(
    ('values', 'remedy'),
    [
        ([0, 1, 2, 255], ''),
        ([0] * 5 + [1, 2, 3], 'if 3 marks void pixels, set ignore_index=3'),
        ([1] * 5 + [2, 3], 'labels start at 1'),
    ],
)
def test_a_remedy_takes_all_values_into_account(
    tmp_path, store, values, remedy
):
    own = remedy_of(tmp_path, store, values)
    assert remedy in own
    assert bool(own) == bool(remedy)
