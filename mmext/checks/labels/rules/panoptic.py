"""Rules for panoptic labels: segments of the file against those of the PNG."""

from collections import Counter

from ...findings import Severity, new_finding
from ..expectations import Expectations
from ..facts import SampleFacts, SegmentFacts
from ..readers.coco import CocoFile
from .registry import PAN, Findings

_VOID = 0
_MAX_SHOWN = 5
# Others hold one number, or indices, for each pixel.
_COLOURS = ('RGB', 'RGBA')


def _ids(facts: SampleFacts) -> dict[int, int]:
    """Pixels of each id, red + 256 green + 65536 blue; none if unknown."""
    mask = facts.mask
    if mask is None or mask.error or mask.mode not in _COLOURS:
        return {}
    if mask.truncated:
        return {}
    return {
        (colour >> 16) | (colour & 0xFF00) | (colour & 0xFF) << 16: count
        for colour, count in mask.values
    }


def _about(facts: SampleFacts, segment: SegmentFacts) -> dict:
    return {
        'file': facts.sample.annotation,
        'key': segment.location,
        'image': facts.sample.mask,
        'value': str(segment.id),
    }


@PAN.rule(
    'PAN001',
    title='segment that the PNG does not have',
    remedy='remove the segment from segments_info, or paint it; the loader '
    'makes an empty mask of it, and the metric fails',
    needs='mask',
    unit='segment',
)
def _not_painted(facts: SampleFacts, expected: Expectations) -> Findings:
    ids = _ids(facts)
    for segment in facts.sample.segments if ids else ():
        if segment.id != _VOID and segment.id not in ids:
            yield new_finding(
                'no pixel of the PNG has the id of the segment',
                **_about(facts, segment),
            )


@PAN.rule(
    'PAN002',
    title='id of the PNG that no segment has',
    remedy='add the segment to segments_info, or paint its pixels black '
    '(id 0, which is ignored); the loader ignores them without saying so',
    needs='mask',
    unit='pixel',
)
def _not_listed(facts: SampleFacts, expected: Expectations) -> Findings:
    if expected.task != 'panoptic':
        return
    listed = {_VOID, *(segment.id for segment in facts.sample.segments)}
    left = {
        value: count
        for value, count in _ids(facts).items()
        if value not in listed
    }
    if left:
        shown = ', '.join(map(str, [*left][:_MAX_SHOWN]))
        more = ', ...' if len(left) > _MAX_SHOWN else ''
        yield new_finding(
            'the PNG has ids that segments_info does not have',
            file=facts.sample.mask,
            value=f'{shown}{more}',
            count=sum(left.values()),
        )


@PAN.rule(
    'PAN003',
    title='area of a segment is not its number of pixels',
    severity=Severity.WARNING,
    remedy='count the pixels anew; the two may be of different versions of '
    'the annotation, or the PNG was scaled',
    needs='mask',
    unit='segment',
)
def _other_area(facts: SampleFacts, expected: Expectations) -> Findings:
    ids = _ids(facts)
    for segment in facts.sample.segments:
        count = ids.get(segment.id)
        if count and segment.area >= 0 and count != segment.area:
            yield new_finding(
                f'the area of the segment is {segment.area:g}, the PNG has '
                f'{count:,} pixels of it',
                **_about(facts, segment),
            )


@PAN.rule(
    'PAN004',
    title='id of a segment that is used twice in an image, or is 0',
    remedy='give each segment of an image an id of its own, above 0, in the '
    'file and in the PNG: 0 is what no segment is',
    needs='',
    unit='segment',
)
def _segment_ids(facts: SampleFacts, expected: Expectations) -> Findings:
    seen: Counter[int] = Counter()
    for segment in facts.sample.segments:
        seen[segment.id] += 1
        if segment.id == _VOID or seen[segment.id] > 1:
            yield new_finding(
                'the id of the segment is 0'
                if segment.id == _VOID
                else 'the id of the segment is taken by another of the image',
                **_about(facts, segment),
            )


@PAN.rule(
    'PAN005',
    title='PNG of segments without colours',
    remedy='write each id as a colour, red + 256 green + 65536 blue '
    '(panopticapi.utils.id2rgb); the loader takes grey 7 for id 460551',
    needs='mask',
    subject='mask',
)
def _no_colours(facts: SampleFacts, expected: Expectations) -> Findings:
    """One number for each pixel; colours of a palette are colours."""
    mask = facts.mask
    if expected.task != 'panoptic' or mask is None or mask.error:
        return
    if mask.mode not in (*_COLOURS, 'P', 'PA'):
        yield new_finding(
            f'the PNG must have colours, got mode {mask.mode}',
            file=facts.sample.mask,
            value=mask.mode,
        )


@PAN.rule(
    'PAN006',
    title='isthing of a category is missing, or is not what the config says',
    remedy='write isthing of each category, 1 for what has objects, 0 for '
    'stuff, and metainfo.thing_classes and stuff_classes alike; loaders of '
    'MMDetection fail without it',
    scope='coco',
    subject='file',
)
def _is_thing(facts: CocoFile, expected: Expectations) -> Findings:
    if expected.task != 'panoptic':
        return
    kinds = facts.categories
    for index, name in zip(kinds.index.tolist(), kinds.name):
        thing = facts.things.get(name)
        wanted = name in expected.thing_classes
        if thing is None or (name in expected.classes and thing != wanted):
            yield new_finding(
                f'category {name!r} has no isthing'
                if thing is None
                else f'category {name!r} has isthing {int(thing)}, and is '
                f'{"a thing" if wanted else "stuff"} to the config',
                file=facts.path,
                key=f'categories[{index}]',
                value=name,
            )
