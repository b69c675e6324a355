import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mmext.checks.labels import Expectations
from mmext.checks.labels.expectations import (
    LoadedValues,
    count_classes,
    load_value,
    loaded_values,
)


def as_mmseg_loads(stored: int, expected: Expectations) -> int:
    """The formula of LoadAnnotations, on an array."""
    seg = np.array([stored]).astype(np.uint8)
    if expected.reduce_zero_label:
        seg[seg == 0] = 255
        seg = seg - 1
        seg[seg == 254] = 255
    copy = seg.copy()
    for old, new in expected.label_map:
        seg[copy == old] = new
    return int(seg[0])


LABEL_MAP = st.dictionaries(
    st.integers(0, 255), st.integers(0, 255), max_size=5
)


@given(st.integers(-1, 70000), st.booleans(), LABEL_MAP)
def test_matches_the_loader(stored, reduce, label_map):
    expected = Expectations(
        reduce_zero_label=reduce, label_map=tuple(label_map.items())
    )
    assert load_value(stored, expected) == as_mmseg_loads(stored, expected)
    table = loaded_values(expected)
    assert table.value[stored % 256] == load_value(stored, expected)


def test_kinds():
    table = loaded_values(Expectations(num_classes=3))
    assert isinstance(table, LoadedValues)
    assert table.fine == {0, 1, 2, 255}
    kinds = [table.kind_of(value) for value in (2, 3, 254, 255, 256, 65535)]
    assert kinds[:4] == ['class', 'bad', 'reduced', 'ignored']
    assert kinds[4:] == ['wraps', 'wide_void']


def test_count_classes_adds_what_is_mapped_together():
    expected = Expectations(num_classes=2, label_map=((0, 0), (1, 0), (2, 1)))
    counts = count_classes({0: 1, 1: 2, 2: 4, 9: 8}, expected)
    assert counts == {0: 3, 1: 4}
