"""Rules for depth and normals, and pictures in npy files."""

from collections.abc import Iterator

from ...findings import Finding, Severity, found
from ..expectations import Expectations
from ..facts import ArrayFacts, ImageFacts, SampleFacts, has_size
from .registry import MTL, MTL_VALUES

_MUST_BE = {
    'not finite': 'be finite',
    'negative': 'be at least 0 (0 is invalid)',
    'not unit': 'have length 1 or be (0, 0, 0), which is invalid',
    'out of range': 'be in [0, 1]',
}


def _maps(facts: SampleFacts) -> Iterator[tuple[str, str, ArrayFacts]]:
    """Name, path and facts of depth and normals, as far as there are any."""
    if facts.depth is not None:
        yield 'depth', facts.sample.depth, facts.depth
    if facts.normal is not None:
        yield 'normals', facts.sample.normal, facts.normal


def _bad_values(
    name: str, path: str, facts: ArrayFacts | ImageFacts | None
) -> Iterator[Finding]:
    for kind, count, first in facts.bad if facts is not None else ():
        yield found(
            f'values of the {name} must {_MUST_BE[kind]}',
            file=path,
            pixel=divmod(first, facts.width),
            value=kind,
            count=count,
        )


@MTL.rule(
    'MTL001',
    title='file of depth or normals is missing or cannot be read',
    severity=Severity.ERROR,
    remedy='copy or make the file anew: an npy array of numbers, (H, W) or '
    '(H, W, 1) of depth, (H, W, 3) of normals',
    blocks_training=True,
)
def unreadable(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Files that are absent, empty, cut off, damaged, or no such array."""
    for name, path, array in _maps(facts):
        if array.error:
            yield found(f'the {name} cannot be read: {array.error}', file=path)


@MTL.rule(
    'MTL002',
    title='depth or normals have another size than the image',
    severity=Severity.ERROR,
    remedy='find the file that belongs to the image, or resize the one that '
    'was resized back: depth by nearest neighbour, normals to length 1 again',
    blocks_training=True,
)
def other_size(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Sizes that differ."""
    image = facts.image
    for name, path, array in _maps(facts) if has_size(image) else ():
        own, wanted = (f'{x.width} x {x.height}' for x in (array, image))
        if not array.error and own != wanted:
            yield found(
                f'image and {name} must have the same size, got {wanted} and '
                f'{own}',
                file=path,
                value=own,
            )


@MTL_VALUES.rule(
    'MTL003',
    title='picture with values outside of [0, 1]',
    severity=Severity.ERROR,
    remedy='store pictures of this layout as floating-point numbers in '
    '[0, 1]; divide those in [0, 255] by 255',
)
def picture_range(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Values that are not finite, or out of range by over 0.001."""
    yield from _bad_values('picture', facts.sample.image, facts.image)


@MTL_VALUES.rule(
    'MTL004',
    title='depth that is negative or not finite',
    severity=Severity.ERROR,
    remedy='write 0, which is invalid, where the depth is not known',
    blocks_training=True,
)
def bad_depth(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """Values that the loader refuses."""
    yield from _bad_values('depth', facts.sample.depth, facts.depth)


@MTL_VALUES.rule(
    'MTL005',
    title='normals that are no unit vectors',
    severity=Severity.ERROR,
    remedy='divide normals by their length, and write (0, 0, 0) where they '
    'are not known; interpolation makes them shorter',
)
def bad_normals(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Lengths that are neither 0 nor within 0.02 of 1; not finite ones."""
    yield from _bad_values('normals', facts.sample.normal, facts.normal)
