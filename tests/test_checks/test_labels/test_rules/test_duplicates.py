from itertools import combinations

import numpy as np
from helpers.label_facts import EXPECTED, findings_of, only, sample_of
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mmext.checks.labels.facts import ImageFacts
from mmext.checks.labels.rules.duplicates import MAX_DISTANCE, near_pairs

VAL = replace(EXPECTED, split='val')
PRINT = 0x0F1E2D3C4B5A6978


def shown(index: int, digest: str, fingerprint: int = -1, split='train'):
    image = ImageFacts(
        width=10, height=10, digest=digest, fingerprint=fingerprint
    )
    return sample_of(index, split, image=image)


def test_val_and_test_share_images():
    """They are often the same set; nothing was trained on it."""
    test = replace(EXPECTED, split='test')
    samples = [
        sample_of(9),
        shown(0, 'a', PRINT, 'val'),
        shown(1, 'a', PRINT, 'test'),
    ]
    assert findings_of(samples, EXPECTED, VAL, test) == []


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 63), max_size=4), st.booleans())
def test_few_differing_bits_look_alike(bits, across):
    other = PRINT
    for bit in bits:
        other ^= 1 << bit
    split = 'val' if across else 'train'
    samples = [
        shown(0, 'a', PRINT),
        shown(1, 'b', other, split),
        shown(2, 'c', PRINT ^ (2**64 - 1)),
    ]
    expected = (EXPECTED, VAL) if across else (EXPECTED,)
    rule = 'DUP004' if across else 'DUP003'
    (finding,) = only(rule, samples, *expected)
    assert finding.count == 2
    assert 'train/0.jpg' in finding.message


def test_an_image_of_two_samples_is_no_duplicate():
    sample = shown(0, 'a', PRINT)
    assert findings_of([sample, sample]) == []


PRINTS = st.integers(0, 2**64 - 1)
FLIPS = st.lists(st.integers(0, 63), max_size=6)


def pairs_of(prints: list[int]) -> set[tuple[int, int]]:
    results = near_pairs(np.array(prints, np.uint64))
    return {
        tuple(sorted(pair)) for pairs in results for pair in pairs.tolist()
    }


def flip(value: int, bits: list[int]) -> int:
    for bit in bits:
        value ^= 1 << bit
    return value


@settings(deadline=None)
@given(st.lists(PRINTS, max_size=8), st.lists(FLIPS, max_size=24))
def test_matches_all_pairs(prints, flips):
    if prints:
        own = enumerate(flips)
        prints = [*prints, *(flip(prints[i % len(prints)], f) for i, f in own)]
    prints = sorted(set(prints))
    expected = {
        (one, other)
        for one, other in combinations(range(len(prints)), 2)
        if (prints[one] ^ prints[other]).bit_count() <= MAX_DISTANCE
        and all(4 <= prints[value].bit_count() <= 60 for value in (one, other))
    }
    assert pairs_of(prints) == expected
