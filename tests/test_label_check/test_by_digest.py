"""Columns and rows, against lists."""

import random

from mmext.label_check import ImageFacts
from mmext.label_check.by_digest import ImageRow, ImagesByDigest


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
        part = expected[begin : begin + 700]
        rows.extend(
            [row.path for row in part],
            [row.digest for row in part],
            [row.fingerprint for row in part],
        )
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


def test_one_by_one_is_the_same():
    images = some_images(1500)
    rows = ImagesByDigest(iter(images))
    assert [row.path for row in rows.rows(range(1500))] == [
        path for path, _ in images
    ]


def test_images_without_a_digest_are_left_out():
    facts = ImageFacts(error='missing: no such file')
    for rows in (ImagesByDigest([('a', facts)]), ImagesByDigest()):
        assert len(rows) == 0
        assert [column.tolist() for column in rows.columns()] == [[], []]
        assert rows.rows([]) == []
