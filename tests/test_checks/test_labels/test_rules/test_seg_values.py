import pytest
from helpers.label_facts import EXPECTED, findings_of, mask_of, only, sample_of
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace


def plant(value: int, count: int = 10, **fields):
    values = {0: 40, 1: 30, 2: 20}
    return sample_of(7, mask=mask_of(values | {value: count}, **fields))


def others():
    return [sample_of(index) for index in range(3)]


@settings(max_examples=50, deadline=None)
@given(
    st.integers(3, 253),
    st.integers(1, 10**6),
)
def test_planted_value_is_found_by_one_rule(value, count):
    sample = plant(value, count, height=10)
    (finding,) = only('SEG001', [*others(), sample])
    assert (finding.value, finding.count) == (str(value), count)
    assert finding.file == 'train/7.png'
    assert finding.place == 'y=9, x=0'
    assert f'label {value} is out of range' in finding.message
    assert 'in [0, 2] (num_classes=3, ignore_index=255)' in finding.message


def test_zero_is_reduced_to_what_is_not_ignored():
    expected = replace(EXPECTED, reduce_zero_label=True, ignore_index=254)
    mask = mask_of({0: 40, 1: 30, 2: 20, 3: 10})
    (finding,) = only('SEG004', [sample_of(mask=mask)], expected)
    assert 'label 255, which the loader makes of 0' in finding.message


@pytest.mark.parametrize('num_classes', [1, 2])
def test_black_and_white(num_classes):
    expected = replace(
        EXPECTED, num_classes=num_classes, classes=(), ignore_index=254
    )
    samples = [sample_of(mask=mask_of({0: 40, 255: 60}))]
    if num_classes == 2:
        samples.append(sample_of(1, mask=mask_of({0: 50, 1: 50})))
    (finding,) = only('SEG005', samples, expected)
    assert finding.count == 60


def test_254_is_reduced_to_253():
    expected = replace(EXPECTED, reduce_zero_label=True)
    mask = mask_of({0: 10, 1: 40, 2: 30, 3: 10, 254: 10})
    (finding,) = only('SEG006', [sample_of(mask=mask)], expected)
    assert 'label 253, which the loader makes of 254' in finding.message


def test_only_ignored():
    sample = sample_of(7, mask=mask_of({255: 100}))
    (finding,) = only('SEG007', [*others(), sample])
    assert finding.count == 100
    # All of it wraps to 255.
    sample = sample_of(7, mask=mask_of({65535: 100}, mode='I;16'))
    (finding,) = only('SEG007', [*others(), sample])
    assert finding.count == 100


def test_ignored_class_and_unknown_number_are_fine():
    camvid = replace(EXPECTED, num_classes=0, classes=())
    assert findings_of([plant(77)], camvid) == []
    ignored = replace(EXPECTED, ignore_index=3)
    assert findings_of([plant(3)], ignored) == []


def test_colours_are_left_to_another_rule():
    mask = mask_of({0x804020: 100}, mode='RGB')
    assert only('SEG010', [*others(), sample_of(7, mask=mask)])
