"""Files on a disk to a report."""

import numpy as np
import pytest
from helpers.label_data import write_pairs
from PIL import Image

from mmext.checks.findings import Severity
from mmext.checks.labels import Expectations, check_sources
from mmext.checks.labels.report import Report
from mmext.checks.labels.scan import scan, work_items
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


def test_clean_data(data, store):
    report = check_sources([source(data)], store)
    assert report.groups == ()
    (split,) = report.splits
    assert (split.num_samples, split.num_images, split.num_masks) == (6, 6, 6)
    masks = [np.array(Image.open(path)) for path in (data / 'masks').iterdir()]
    for row in split.classes:
        assert row.pixels == sum(int((m == row.label).sum()) for m in masks)
        assert (row.masks, row.area) == (6, 6 * 24 * 32)


def test_other_expectations_need_no_reading(data, store):
    check_sources([source(data)], store)
    narrow = Expectations(num_classes=2, classes=('a', 'b'))
    assert scan(work_items([source(data, narrow)]), store) == 0
    results = errors(check_sources([source(data, narrow)], store))
    assert results['SEG001'].value == '2'


def test_rejects_two_splits_of_one_name(data, store):
    with pytest.raises(ValueError, match='must have different names'):
        check_sources([source(data), source(data)], store)


def remedy_of(tmp_path, store, values: list[int]) -> str:
    """Remedy for label maps with these values, one row of pixels each."""
    data = write_pairs(tmp_path / 'causes', number=1)
    rows = np.repeat(np.array(values, np.uint8)[:, None], 32, axis=1)
    Image.fromarray(rows).save(data / 'masks' / '0.png')
    (data / 'images' / '0.png').unlink()
    results = errors(check_sources([source(data)], store))
    return results['SEG001'].remedy if 'SEG001' in results else ''


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
