import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from label_facts import mask_of, sample_of

from mmext.label_check import BoxFacts
from mmext.label_check.by_digest import ImageRow
from mmext.label_check.totals import SplitTotals, image_rows

VALUES = st.dictionaries(
    st.integers(-1, 70000), st.integers(1, 99), min_size=1
)


def add_up(samples) -> SplitTotals:
    totals = SplitTotals(split='train')
    for each in samples:
        totals.add(each)
    return totals


@given(st.lists(VALUES, max_size=6), st.integers(0, 6))
def test_shards_and_order_do_not_matter(maps, cut):
    samples = [sample_of(mask=mask_of(each)) for each in maps]
    whole = add_up(samples)
    merged = add_up(samples[cut:][::-1])
    merged.merge(add_up(samples[:cut]))
    assert merged == whole
    for value in range(3):
        counts = [each.get(value, 0) for each in maps]
        assert whole.pixels.get(value, 0) == sum(counts)
        assert whole.masks.get(value, 0) == sum(map(bool, counts))
    outside = [
        count
        for each in maps
        for value, count in each.items()
        if not 0 <= value <= 65535
    ]
    assert whole.num_outside == sum(outside)


def test_area_is_that_of_the_masks_with_the_value():
    totals = add_up([sample_of(), sample_of(mask=mask_of({0: 50}))])
    assert (totals.area[0], totals.area[1]) == (150, 100)


def test_boxes():
    boxes = tuple(
        BoxFacts(box=(0, 0, 1, 1), label=label, ignored=label == 2)
        for label in (0, 0, 1, 2, -1)
    )
    totals = add_up([sample_of(sample={'boxes': boxes})])
    assert totals.boxes == {0: 2, 1: 1, -1: 1}
    assert totals.box_images == {0: 1, 1: 1, -1: 1}
    assert totals.num_ignored == 1


def test_colours_are_not_counted_as_values():
    totals = add_up([sample_of(mask=mask_of({0x804020: 9}, mode='RGB'))])
    assert (totals.modes, totals.pixels) == ({'RGB': 1}, {})


def test_survives_json():
    totals = add_up([sample_of()])
    data = msgspec.json.encode(totals)
    assert msgspec.json.decode(data, type=SplitTotals) == totals


def test_rejects_another_split():
    totals = SplitTotals(split='val')
    with pytest.raises(ValueError, match="split must be 'val'"):
        totals.add(sample_of())
    with pytest.raises(ValueError, match="split must be 'val'"):
        totals.merge(SplitTotals(split='train'))


def test_image_rows():
    rows = image_rows([sample_of(2), sample_of(1)])
    assert rows.rows(range(len(rows))) == [
        ImageRow('train-00000002', -1, 'train/2.jpg'),
        ImageRow('train-00000001', -1, 'train/1.jpg'),
    ]
