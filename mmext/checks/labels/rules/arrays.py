"""Rules for depth and normals, and pictures in npy files."""

from collections.abc import Callable

from ...findings import Severity, found
from ..expectations import Expectations
from ..facts import SampleFacts, has_size
from .registry import MTL, MTL_VALUES, Findings

_MUST_BE = {
    'not finite': 'be finite',
    'negative': 'be at least 0 (0 is invalid)',
    'not unit': 'have length 1 or be (0, 0, 0), which is invalid',
    'out of range': 'be in [0, 1]',
}


def _bad_values(name: str, field: str) -> Callable:
    """A rule for values that the reader has found to be wrong."""

    def check(facts: SampleFacts, expected: Expectations) -> Findings:
        array = getattr(facts, field)
        for kind, count, first in array.bad if array is not None else ():
            yield found(
                f'values of the {name} must {_MUST_BE[kind]}',
                file=getattr(facts.sample, field),
                pixel=divmod(first, array.width),
                value=kind,
                count=count,
            )

    return check


@MTL.rule(
    'MTL002',
    title='depth or normals have another size than the image',
    severity=Severity.ERROR,
    remedy='find the file that belongs to the image, or resize the one that '
    'was resized back: depth by nearest neighbour, normals to length 1 again',
    blocks_training=True,
)
def _other_size(facts: SampleFacts, expected: Expectations) -> Findings:
    image, sample = facts.image, facts.sample
    for name, array, path in (
        ('depth', facts.depth, sample.depth),
        ('normals', facts.normal, sample.normal),
    ):
        if not has_size(image) or array is None or array.error:
            continue
        own, wanted = (f'{x.width} x {x.height}' for x in (array, image))
        if own != wanted:
            yield found(
                f'image and {name} must have the same size, got {wanted} and '
                f'{own}',
                file=path,
                value=own,
            )


MTL_VALUES.rule(
    'MTL003',
    title='picture with values outside of [0, 1]',
    severity=Severity.ERROR,
    remedy='store pictures of this layout as floating-point numbers in '
    '[0, 1]; divide those in [0, 255] by 255',
)(_bad_values('picture', 'image'))


MTL_VALUES.rule(
    'MTL004',
    title='depth that is negative or not finite',
    severity=Severity.ERROR,
    remedy='write 0, which is invalid, where the depth is not known',
    blocks_training=True,
)(_bad_values('depth', 'depth'))


MTL_VALUES.rule(
    'MTL005',
    title='normals that are no unit vectors',
    severity=Severity.ERROR,
    remedy='divide normals by their length, and write (0, 0, 0) where they '
    'are not known; interpolation makes them shorter',
)(_bad_values('normals', 'normal'))
