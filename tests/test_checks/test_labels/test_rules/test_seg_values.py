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


def test_ignored_class_and_unknown_number_are_fine():
    camvid = replace(EXPECTED, num_classes=0, classes=())
    assert findings_of([plant(77)], camvid) == []
    ignored = replace(EXPECTED, ignore_index=3)
    assert findings_of([plant(3)], ignored) == []
