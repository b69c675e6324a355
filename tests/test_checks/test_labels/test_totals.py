"""Sums over samples, and the images of a split, against lists."""

import random

from helpers.label_facts import mask_of, sample_of
from hypothesis import given
from hypothesis import strategies as st

from mmext.checks.labels.facts import (
    BoxFacts,
    ErrorKind,
    ImageFacts,
    ReadError,
)
from mmext.checks.labels.totals import ImageRow, ImagesByDigest, SplitTotals

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


def test_colours_are_not_counted_as_values():
    totals = add_up([sample_of(mask=mask_of({0x804020: 9}, mode='RGB'))])
    assert (totals.modes, totals.pixels) == ({'RGB': 1}, {})


def test_images_in_their_order():
    images = add_up([sample_of(2), sample_of(1)]).images
    assert images.rows(range(len(images))) == [
        ImageRow('train-00000002', -1, 'train/2.jpg'),
        ImageRow('train-00000001', -1, 'train/1.jpg'),
    ]


def some_images(number: int) -> list[tuple[str, ImageFacts]]:
    rng = random.Random(0)
    return [
        (
            f'{n}\udcff.jpg',
            ImageFacts(
                digest=f'{rng.randrange(200):064x}',
                fingerprint=rng.choice([-1, 0, 2**63, 2**64 - 1]),
            ),
        )
        for n in range(number)
    ]


def test_rows_and_columns_against_a_list():
    images = some_images(5000)
    expected = [ImageRow(f.digest, f.fingerprint, path) for path, f in images]
    rows = ImagesByDigest()
    for begin in range(0, 5000, 700):
        part = images[begin : begin + 700]
        for path, facts in part:
            rows.add(path, facts)
        # Looking does not end the adding.
        assert len(rows.columns()[0]) == len(rows) == begin + len(part)
        assert rows.rows([0, begin]) == [expected[0], expected[begin]]
    assert rows.rows(range(5000)) == expected
    assert rows.rows([4999, 3, 2100]) == [expected[n] for n in (4999, 3, 2100)]
    keys, prints = rows.columns()
    assert prints.tolist() == [max(row.fingerprint, 0) for row in expected]
    of_digest = dict(zip((row.digest for row in expected), keys.tolist()))
    assert keys.tolist() == [of_digest[row.digest] for row in expected]
    assert len(set(of_digest.values())) == len(of_digest)


def test_images_without_a_digest_are_left_out():
    facts = ImageFacts(error=ReadError(ErrorKind.MISSING, 'x'))
    rows = ImagesByDigest()
    rows.add('a', facts)
    assert len(rows) == 0
    assert [column.tolist() for column in rows.columns()] == [[], []]
    assert rows.rows([]) == []
