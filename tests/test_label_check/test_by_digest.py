"""Sorting on disk, against sorting in memory."""

import random

from mmext.label_check import ImageFacts
from mmext.label_check.by_digest import ImagesByDigest


def test_same_as_sorting_in_memory():
    rng = random.Random(0)
    images = [
        (
            f'{n}\udcff.jpg',
            ImageFacts(
                digest=f'{rng.randrange(200):064x}',
                fingerprint=rng.choice([-1, 0, 2**63, 2**64 - 1]),
            ),
        )
        for n in range(1000)
    ]
    expected = sorted(
        ((f.digest, f.fingerprint, path) for path, f in images),
        key=lambda row: (row[0], row[2].encode('utf-8', 'surrogateescape')),
    )
    rows = ImagesByDigest(iter(images))
    assert list(rows) == expected
    # Again, and twice at the same time.
    assert list(zip(rows, rows)) == list(zip(expected, expected))
    assert len(rows) == 1000


def test_a_path_named_twice_is_one_image():
    facts = ImageFacts(digest='aa', fingerprint=5)
    rows = ImagesByDigest([('a', facts), ('a', facts), ('b', facts)])
    assert list(rows) == [('aa', 5, 'a'), ('aa', 5, 'b')]


def test_images_without_a_digest_are_left_out():
    facts = ImageFacts(error='missing: no such file')
    assert list(ImagesByDigest([('a', facts)])) == []
    assert list(ImagesByDigest([])) == []
