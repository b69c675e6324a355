"""From the changes of memory in a step to what a training needs.

:class:`CachingAllocator` is a model of that of PyTorch for CUDA
(``c10/cuda/CUDACachingAllocator.cpp``, its defaults): which segments it asks
for, how it cuts and joins them.
"""

from bisect import insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .recorder import MemoryEvent, Place

MIB = 2**20
_ROUND = 512
# Blocks up to the first are of segments of the second.
_SMALL, _SMALL_SEGMENT = MIB, 2 * MIB
# Larger ones up to the first too; of those above, each has its own.
_LARGE, _LARGE_SEGMENT = 10 * MIB, 20 * MIB
KINDS = (
    'weights',
    'gradients',
    'optimizer states',
    'activations',
    'backward',
    'optimizer',
    'DDP buckets',
)


def rounded(size: int) -> int:
    """Bytes that the allocator gives for so many."""
    return max(-(-size // _ROUND), 1) * _ROUND


class _Block:
    __slots__ = (
        'next',
        'offset',
        'pool',
        'previous',
        'segment',
        'size',
        'used',
    )

    def __init__(self, segment: int, offset: int, size: int, pool: list):
        self.segment, self.offset, self.size = segment, offset, size
        self.pool, self.used = pool, False
        self.previous = self.next = None

    def __lt__(self, other: '_Block') -> bool:
        return (self.size, self.segment, self.offset) < (
            *(other.size, other.segment, other.offset),
        )


class CachingAllocator:
    """Segments and blocks of one stream.

    Attributes:
        allocated: Bytes of blocks in use, rounded to 512 each.
        reserved: Bytes of all segments, which are kept.

    Examples:
        >>> allocator = CachingAllocator()
        >>> allocator.allocate(0, 3_000_000)
        >>> allocator.allocated, allocator.reserved
        (3000320, 20971520)
    """

    def __init__(self) -> None:
        self.allocated = self.reserved = 0
        self._small: list[_Block] = []
        self._large: list[_Block] = []
        self._used: dict[int, _Block] = {}
        self._segments = 0

    def allocate(self, number: int, size: int) -> None:
        """Give memory, of the smallest free block that is large enough."""
        size = rounded(size)
        self.allocated += size
        pool = self._small if size <= _SMALL else self._large
        block = next((b for b in pool if b.size >= size), None)
        if block is None:
            block = self._new_segment(size, pool)
        else:
            pool.remove(block)
        left = block.size - size
        if left >= (_ROUND if pool is self._small else _SMALL + 1):
            rest = _Block(block.segment, block.offset + size, left, pool)
            rest.previous, rest.next = block, block.next
            if block.next is not None:
                block.next.previous = rest
            block.next, block.size = rest, size
            insort(pool, rest)
        block.used = True
        self._used[number] = block

    def _new_segment(self, size: int, pool: list) -> _Block:
        if pool is self._small:
            size = _SMALL_SEGMENT
        elif size < _LARGE:
            size = _LARGE_SEGMENT
        else:
            size = -(-size // _SMALL_SEGMENT) * _SMALL_SEGMENT
        self.reserved += size
        self._segments += 1
        return _Block(self._segments, 0, size, pool)

    def free(self, number: int, size: int) -> None:
        """Take memory back, and join it with its free neighbours."""
        self.allocated -= rounded(size)
        block = self._used.pop(number)
        block.used = False
        for other in (block.previous, block.next):
            if other is None or other.used:
                continue
            block.pool.remove(other)
            first, second = sorted((block, other), key=lambda b: b.offset)
            first.size += second.size
            first.next = second.next
            if second.next is not None:
                second.next.previous = first
            block = first
        insort(block.pool, block)


@dataclass(frozen=True)
class MemoryForecast:
    """Bytes on the device at the peak of a training step."""

    # Of what is alive, rounded as the allocator does.
    peak: int
    # Of the segments that hold it.
    reserved: int
    # Kind -> bytes at the peak; KINDS has the kinds.
    parts: Mapping[str, int]
    # Of the largest that are alive at the peak: bytes, kind and place.
    largest: Sequence[tuple[int, str, Place]] = field(repr=False)


def forecast(
    events: Sequence[MemoryEvent],
    kinds: Mapping[int, str],
    *,
    optimizer_at: int | None,
    buckets: int = 0,
) -> MemoryForecast:
    """The peak of a later step, from the first one.

    What the first optimizer step leaves, its states, is there from the
    beginning of the later ones.

    Args:
        events: Of building the model and of the step.
        kinds: What memory is for, by number, where it is known.
        optimizer_at: Number of events before the optimizer's step.
        buckets: Bytes of DDP's buckets.
    """
    end = len(events) if optimizer_at is None else optimizer_at
    kind_of = dict(kinds)
    for at, (number, size, place) in enumerate(events):
        if size >= 0 and number not in kind_of:
            before = 'backward' if place.backward else 'activations'
            kind_of[number] = before if at < end else 'optimizer'
    early = {n for n, kind in kind_of.items() if kind == 'optimizer states'}
    order = [event for event in events if event[0] in early]
    order += [event for event in events if event[0] not in early]
    allocator = CachingAllocator()
    if buckets:
        allocator.allocate(-1, buckets)
    peak = peak_at = 0
    for at, (number, size, _) in enumerate(order):
        if size < 0:
            allocator.free(number, -size)
        else:
            allocator.allocate(number, size)
        if allocator.allocated > peak:
            peak, peak_at = allocator.allocated, at
    alive: dict[int, tuple[int, Place]] = {}
    for number, size, place in order[: peak_at + 1]:
        if size < 0:
            del alive[number]
        else:
            alive[number] = size, place
    parts = Counter({'DDP buckets': buckets})
    for number, (size, _) in alive.items():
        parts[kind_of[number]] += rounded(size)
    largest = sorted(alive.items(), key=lambda item: -item[1][0])[:10]
    return MemoryForecast(
        peak=peak,
        reserved=allocator.reserved,
        parts={kind: parts[kind] for kind in KINDS if parts[kind]},
        largest=tuple(
            (size, kind_of[number], place) for number, (size, place) in largest
        ),
    )
