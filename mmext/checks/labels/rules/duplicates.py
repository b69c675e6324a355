"""Rules for images that occur twice, in a split or across splits."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import combinations, pairwise

import numpy as np

from ...findings import Finding, Location, Severity, new_finding
from ..expectations import Expectations
from ..totals import SplitTotals
from .registry import DUP, Expected, Findings, Totals

MAX_DISTANCE = 4
_BITS = 64
_BLOCKS = 6
# Blocks of a fingerprint without contrast: all such images look alike.
_FLAT_BITS = 4


def near_pairs(fingerprints: np.ndarray) -> Iterator[np.ndarray]:
    """``(m, 2)`` indices of pairs that are alike; a pair may come repeatedly.

    Of ``(n,)`` uint64 fingerprints, each once; those with fewer than 4 bits
    set, or not set, are left out: flat images.
    """
    usable = np.flatnonzero(_has_contrast(fingerprints)).astype(np.uint32)
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


def _has_contrast(fingerprints: np.ndarray) -> np.ndarray:
    ones = _popcount(fingerprints)
    return (ones >= _FLAT_BITS) & (ones <= _BITS - _FLAT_BITS)


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
    bits_of_bytes = np.unpackbits(bits.view(np.uint8).reshape(-1, 8), axis=1)
    return bits_of_bytes.sum(1, np.uint8)


_MAX_NAMES = 4
_Location = tuple[str, str]


def _rows(totals: Totals) -> Iterator[tuple[str, int, _Location]]:
    """Digest, fingerprint, and split with path, of all images."""
    for own in totals:
        for digest, fingerprint, path in own.images:
            yield digest, fingerprint, (own.split, path)


def _same(totals: Totals) -> Iterator[Counter[_Location]]:
    """Images with the same bytes, and how many samples each has."""
    counts = Counter(digest for digest, _, _ in _rows(totals))
    members: dict[str, Counter[_Location]] = {}
    for digest, _, location in _rows(totals):
        if counts[digest] > 1:
            members.setdefault(digest, Counter())[location] += 1
    for digest in sorted(members):
        yield members[digest]


def _alike(totals: Totals) -> Iterator[set[_Location]]:
    """Locations of images that look alike, and are not all the same."""
    counts = Counter(bits for _, bits, _ in _rows(totals) if bits > 0)
    prints = np.array(sorted(counts), np.uint64)
    roots = _groups(prints)
    several = {
        p for p in prints[_has_contrast(prints)].tolist() if counts[p] > 1
    }
    members: dict[int, dict[str, set[_Location]]] = {}
    for digest, fingerprint, location in _rows(totals):
        if fingerprint in several or fingerprint in roots:
            root = roots.get(fingerprint, fingerprint)
            group = members.setdefault(root, {})
            group.setdefault(digest, set()).add(location)
    for root in sorted(members):
        if len(members[root]) > 1:
            yield set().union(*members[root].values())


def _groups(fingerprints: np.ndarray) -> dict[int, int]:
    """Each fingerprint that has near ones, to the one of its group."""
    parent: dict[int, int] = {}

    def root(index: int) -> int:
        while parent.setdefault(index, index) != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for pairs in near_pairs(fingerprints):
        for one, other in pairs.tolist():
            low, high = sorted((root(one), root(other)))
            parent[high] = low
    listed = fingerprints.tolist() if parent else []
    return {listed[index]: listed[root(index)] for index in list(parent)}


def _found(
    what: str, locations: Collection[_Location], with_split: bool
) -> Finding:
    (split, path), *others = ordered = sorted(locations)
    names = [
        f'{path} ({split})' if with_split else path
        for split, path in ordered[:_MAX_NAMES]
    ]
    more = len(ordered) - _MAX_NAMES
    if more > 0:
        names[-1] += f' and {more} more'
    related = (Location(file=o) for _, o in others[: _MAX_NAMES - 1])
    return new_finding(
        f'{len(locations)} {what}: {", ".join(names)}',
        file=path,
        split=split if not with_split else '',
        related=tuple(related),
        count=len(locations),
    )


@DUP.rule(
    'DUP001',
    title='the same image twice in a split',
    severity=Severity.WARNING,
    remedy='keep one of them; if their labels differ, find out which are '
    'right',
    scope='split',
)
def _same_in_split(totals: SplitTotals, expected: Expectations) -> Findings:
    """Files of the same bytes, and files that a list names repeatedly."""
    for locations in _same([totals]):
        if len(locations) > 1:
            yield _found('files are the same image', locations, False)
        # COCO004 tells of COCO's; elsewhere images may have several captions.
        for (_, path), count in locations.items() if totals.list_file else ():
            if count > 1:
                yield new_finding(
                    f'{totals.list_file} names the image repeatedly, and '
                    'loaders load it as often',
                    file=path,
                    remedy='keep one of its lines in the list',
                )


@DUP.rule(
    'DUP002',
    title='the same image in several splits',
    remedy='what was trained on is evaluated on, so that metrics are too '
    'good; take the image out of one of the splits',
    scope='run',
)
def _leaked(totals: Totals, expected: Expected) -> Findings:
    for locations in _same(totals) if len(totals) > 1 else ():
        if _leaks(locations):
            yield _found('files are the same image', locations, True)


def _leaks(locations: Iterable[_Location]) -> bool:
    training = {split.startswith('train') for split, _ in locations}
    return len(training) > 1


@DUP.rule(
    'DUP003',
    title='images of a split that look alike',
    severity=Severity.INFO,
    remedy='look at them: frames of a video or crops of one picture count '
    'as one, and make a split seem larger than it is',
    scope='split',
)
def _alike_in_split(totals: SplitTotals, expected: Expectations) -> Findings:
    """Fingerprints that differ in at most 4 of 64 bits."""
    for locations in _alike([totals]):
        yield _found('images look alike', locations, False)


@DUP.rule(
    'DUP004',
    title='images of several splits that look alike',
    severity=Severity.WARNING,
    remedy='look at them: if they show the same scene, the evaluation is '
    'too good; split by scene, video or patient',
    scope='run',
)
def _alike_across_splits(totals: Totals, expected: Expected) -> Findings:
    """Fingerprints that differ in at most 4 of 64 bits, and leak."""
    for locations in _alike(totals) if len(totals) > 1 else ():
        if _leaks(locations):
            yield _found('images look alike', locations, True)
