from label_facts import EXPECTED, mask_of, sample_of, totals_of

from mmext.label_check.causes import likely_remedies


def remedies(values: dict[int, int]) -> dict[str, str]:
    totals = totals_of([sample_of(mask=mask_of(values))], 'train')
    return likely_remedies([totals], [EXPECTED])


def test_nothing_is_out_of_range():
    assert remedies({0: 1, 2: 1, 255: 1}) == {}


def test_one_more_than_the_last_class():
    remedy = remedies({0: 50, 1: 10, 2: 10, 3: 10})['SEG001']
    assert 'If it marks void pixels, set ignore_index=3' in remedy


def test_labels_start_at_1():
    remedy = remedies({1: 50, 2: 10, 3: 10})['SEG001']
    assert remedy.startswith('labels start at 1')
