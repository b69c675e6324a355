"""Sums over samples, and the images of a split, against lists."""

from helpers.label_facts import mask_of, sample_of
from hypothesis import given
from hypothesis import strategies as st

from mmext.checks.labels.facts import (
    BoxFacts,
    ErrorKind,
    ImageFacts,
    ReadError,
)
from mmext.checks.labels.totals import ImageRow, SplitTotals

VALUES = st.dictionaries(
    st.integers(-1, 70000), st.integers(1, 99), min_size=1
)


def add_up(samples) -> SplitTotals:
    totals = SplitTotals(split='train')
    for each in samples:
        totals.add(each)
    return totals


@given(st.lists(VALUES, max_size=6))
def test_values_are_added_up_in_any_order(maps):
    samples = [sample_of(mask=mask_of(each)) for each in maps]
    whole = add_up(samples)
    other = add_up(samples[::-1])
    for name in ('pixels', 'masks', 'area', 'num_outside', 'sizes', 'modes'):
        assert getattr(other, name) == getattr(whole, name)
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


def test_images_in_their_order():
    missing = ImageFacts(error=ReadError(ErrorKind.MISSING, 'x'))
    samples = [sample_of(2), sample_of(3, image=missing), sample_of(1)]
    assert add_up(samples).images == [
        ImageRow('train-00000002', -1, 'train/2.jpg'),
        ImageRow('train-00000001', -1, 'train/1.jpg'),
    ]
