"""Find 64-bit fingerprints that differ in few bits, not by all pairs."""

from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np

__all__ = ['MAX_DISTANCE', 'near_pairs']

MAX_DISTANCE = 4
_BITS = 64
_BLOCKS = 6
# Blocks of a fingerprint without contrast: all such images look alike.
_FLAT_BITS = 4


def near_pairs(fingerprints: np.ndarray) -> Iterator[np.ndarray]:
    """Find all pairs with at most 4 differing bits.

    The bits are cut into 6 blocks. Two fingerprints that differ in at most 4
    bits agree in at least 2 blocks, so each of the 15 choices of 2 blocks is
    a key to look up by: about 21 bits, or 5 candidates for each of 10^7.

    Args:
        fingerprints: ``(n,)``, uint64, each once.

    Yields:
        ``(m, 2)`` indices of pairs; a pair may come more than once. Those
        with fewer than 4 bits set, or not set, are left out: flat images.

    Note:
        About 32 bytes for each fingerprint, and the candidates of one step.
    """
    ones = _popcount(fingerprints)
    usable = (ones >= _FLAT_BITS) & (ones <= _BITS - _FLAT_BITS)
    usable = np.flatnonzero(usable).astype(np.uint32)
    bits = fingerprints[usable]
    edges = np.linspace(0, _BITS, _BLOCKS + 1).astype(int)
    blocks = [
        ((1 << int(end)) - (1 << int(begin))) for begin, end in pairwise(edges)
    ]
    for one, other in combinations(blocks, 2):
        mask = np.uint64(one | other)
        # Arrays of all fingerprints are what this costs in memory.
        order = np.argsort(bits & mask).astype(np.uint32)
        ordered = bits[order]
        for pairs in _in_buckets(ordered & mask, ordered):
            yield usable[order[pairs]].astype(np.int64)


def _in_buckets(keys: np.ndarray, bits: np.ndarray) -> Iterator[np.ndarray]:
    """Near pairs among neighbours of the same key, by growing distance."""
    begin = np.flatnonzero(keys[1:] == keys[:-1])
    step = 1
    while len(begin):
        if step > 1:
            begin = begin[begin + step < len(keys)]
            begin = begin[keys[begin] == keys[begin + step]]
        apart = _popcount(bits[begin] ^ bits[begin + step])
        near = begin[apart <= MAX_DISTANCE]
        if len(near):
            yield np.stack([near, near + step], 1)
        step += 1


def _popcount(bits: np.ndarray) -> np.ndarray:
    """Number of bits set; numpy.bitwise_count is NumPy 2's."""
    ones = np.zeros(len(bits), np.uint8)
    for byte in bits.view(np.uint8).reshape(-1, 8).T:
        ones += _ONES[byte]
    return ones


_ONES = np.array([bin(value).count('1') for value in range(256)], np.uint8)
