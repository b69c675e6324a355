from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mmext.label_check.near import MAX_DISTANCE, near_pairs

PRINTS = st.integers(0, 2**64 - 1)
FLIPS = st.lists(st.integers(0, 63), max_size=6)


def pairs_of(prints: list[int]) -> set[tuple[int, int]]:
    found = near_pairs(np.array(prints, np.uint64))
    return {tuple(sorted(pair)) for pairs in found for pair in pairs.tolist()}


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
        and all(4 <= prints[each].bit_count() <= 60 for each in (one, other))
    }
    assert pairs_of(prints) == expected


def test_shapes():
    assert pairs_of([]) == pairs_of([2**40 - 1]) == set()
