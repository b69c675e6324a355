"""Rules for depth and normals, and pictures in npy files."""

from collections.abc import Iterator

from ...findings import Finding, Severity, found
from ..expectations import Expectations
from ..facts import ArrayFacts, BadValues, ErrorKind, ImageFacts, SampleFacts
from .images import has_size, loaded_size
from .registry import MTL

__all__: list[str] = []

_WORDS = {
    'not finite': 'must be finite',
    'negative': 'must be at least 0 (0 is invalid)',
    'not unit': 'must have length 1 or be (0, 0, 0), which is invalid',
    'out of range': 'must be in [0, 1]',
}


def _maps(facts: SampleFacts) -> Iterator[tuple[str, str, ArrayFacts]]:
    """Name, path and facts of depth and normals, as far as there are any."""
    sample = facts.sample
    if facts.depth is not None:
        yield 'depth', sample.depth, facts.depth
    if facts.normal is not None:
        yield 'normals', sample.normal, facts.normal


def _bad_values(
    name: str, path: str, facts: ArrayFacts | ImageFacts
) -> Iterator[Finding]:
    for bad in facts.bad:
        yield _bad_value(name, path, bad, facts.width)


def _bad_value(name: str, path: str, bad: BadValues, width: int) -> Finding:
    return found(
        f'values of the {name} {_WORDS[bad.kind]}',
        file=path,
        pixel=divmod(bad.first, width),
        value=bad.kind,
        count=bad.count,
    )


@MTL.rule(
    'MTL001',
    title='file of depth or normals is missing',
    severity=Severity.ERROR,
    remedy='add the file, or remove those of the same number from the other '
    'folders; the data set refuses to load',
    blocks_training=True,
)
def missing(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A sample that lacks one of its files."""
    for name, path, array in _maps(facts):
        if array.error and array.error.kind is ErrorKind.MISSING:
            yield found(f'the {name} of the sample are not there', file=path)


@MTL.rule(
    'MTL002',
    title='file of depth or normals cannot be read',
    severity=Severity.ERROR,
    remedy='copy or make the file anew: an npy array of numbers, (H, W) or '
    '(H, W, 1) of depth, (H, W, 3) of normals',
    blocks_training=True,
)
def unreadable(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Files that are empty, cut off, damaged, or no such array."""
    for name, path, array in _maps(facts):
        if array.error and array.error.kind is not ErrorKind.MISSING:
            yield found(f'the {name} cannot be read: {array.error}', file=path)


@MTL.rule(
    'MTL003',
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
    if not has_size(facts.image):
        return
    image = loaded_size(facts.image)
    for name, path, array in _maps(facts):
        own = array.width, array.height
        if not array.error and own != image:
            yield found(
                f'image and {name} must have the same size, got '
                f'{image[0]} x {image[1]} and {own[0]} x {own[1]}',
                file=path,
                value=f'{own[0]} x {own[1]}',
            )


@MTL.having(unit='pixel').rule(
    'MTL004',
    title='picture with values outside of [0, 1]',
    severity=Severity.ERROR,
    remedy='store pictures of this layout as floating-point numbers in '
    '[0, 1]; divide those in [0, 255] by 255',
    per_value=True,
)
def picture_range(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Values that are not finite, or out of range by over 0.001."""
    if facts.image is not None:
        yield from _bad_values('picture', facts.sample.image, facts.image)


@MTL.having(unit='pixel').rule(
    'MTL005',
    title='depth that is negative or not finite',
    severity=Severity.ERROR,
    remedy='write 0, which is invalid, where the depth is not known',
    per_value=True,
    blocks_training=True,
)
def bad_depth(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """Values that the loader refuses."""
    if facts.depth is not None:
        yield from _bad_values('depth', facts.sample.depth, facts.depth)


@MTL.having(unit='pixel').rule(
    'MTL006',
    title='normals that are no unit vectors',
    severity=Severity.ERROR,
    remedy='divide normals by their length, and write (0, 0, 0) where they '
    'are not known; interpolation makes them shorter',
    per_value=True,
)
def bad_normals(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """Lengths that are neither 0 nor within 0.02 of 1; not finite ones."""
    if facts.normal is not None:
        yield from _bad_values('normals', facts.sample.normal, facts.normal)
