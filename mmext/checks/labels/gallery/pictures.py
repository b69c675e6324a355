"""Pictures of what is wrong, for the examples of a report."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from ...findings import Finding, Severity, page
from ..expectations import Expectations
from ..facts import MaskFacts, Sample
from ..groups import FindingGroup
from ..loaded import holds_indices, loaded_values
from ..report import Report
from ..rules.registry import RULES
from ..sources.split_source import SplitSource
from .examples import (
    ExampleIndex,
    SampleFiles,
    UnreadableFile,
    coloured,
    low_bytes,
    wrong_boxes,
)
from .painting import (
    dimmed,
    fitted_size,
    half_size,
    nearest,
    paint_boxes,
    paint_pixels,
    pool_any,
    resized,
    together,
)

_MIN_SIDE = 32
_MAP = 'label map'
_BYTE = 256


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A finding with a picture of it.

    Attributes:
        rule: Of the finding, and so are severity to message.
        severity: How bad it is.
        split: ``'train'``, ``'val'``, ...
        file: The file that is wrong.
        place: Where in the file.
        value: The value that is wrong.
        message: One sentence.
        group: Index in the groups of the report.
        classes: Names of classes: of the wrong boxes, or those that the
            label map has.
        width: Of the picture, in pixels; 0 without one.
        height: The same.
        uri: ``'data:...'`` of the picture; empty if a file cannot be read.
        alt: What is to be seen; without a picture, why there is none.
    """

    rule: str
    severity: Severity
    split: str
    file: str
    place: str
    value: str
    message: str
    group: int
    classes: tuple[str, ...] = ()
    width: int = 0
    height: int = 0
    uri: str = ''
    alt: str = ''


def _chosen(
    groups: Sequence[FindingGroup], number: int
) -> list[tuple[int, Finding]]:
    """Group and finding of some examples: of each rule in turn."""
    turns: dict[str, int] = {}
    rows = []
    depth = max((len(group.examples) for group in groups), default=0)
    for which in range(depth):
        for index, group in enumerate(groups):
            examples = group.examples[which : which + 1]
            if examples and examples[0].file:
                turn = turns[group.rule] = turns.get(group.rule, -1) + 1
                rows.append((turn, index, which, examples[0]))
    rows = sorted(rows, key=lambda row: row[:3])[:number]
    rows.sort(key=lambda row: row[1:3])
    return [(index, finding) for _, index, _, finding in rows]


def make_gallery(
    report: Report,
    sources: Sequence[SplitSource],
    *,
    max_pictures: int = 200,
    max_side: int = 480,
) -> list[Picture]:
    """Paint what is wrong with the examples of a report, in its order.

    Wrong pixels of label maps are painted over the image; a wrong box is drawn
    thick, the other boxes thin. Files that disagree are put side by side.
    Findings about no sample, such as those about a config, have no picture;
    what cannot be read has an entry without one. Each rule has its share of
    ``max_pictures``.

    Note:
        Files of one sample are in memory at a time; what has more than 89
        million pixels is not decoded.
    """
    if max_pictures < 0:
        raise ValueError(f'max_pictures must be >= 0, got {max_pictures}')
    if max_side < _MIN_SIDE:
        raise ValueError(f'max_side must be >= {_MIN_SIDE}, got {max_side}')
    chosen = _chosen(report.groups, max_pictures)
    done: dict[int, Picture] = {}
    for source in sources:
        split = source.expected.split
        index = ExampleIndex(
            (number, finding)
            for number, (_, finding) in enumerate(chosen)
            if number not in done and finding.split in ('', split)
        )
        for sample, found in _samples(source, index):
            files = SampleFiles(sample, source, max_side)
            for number, finding in found.items():
                group = chosen[number][0]
                done[number] = _picture(finding, group, files)
    return [done[number] for number in sorted(done)]


def _samples(
    source: SplitSource, index: ExampleIndex
) -> Iterator[tuple[Sample, dict[int, Finding]]]:
    """Samples that findings are about; stops when all are found."""
    if not len(index):
        return
    for sample in source.samples():
        found = index.take(sample)
        if found:
            yield sample, found
        if not len(index):
            return


def _picture(finding: Finding, group: int, files: SampleFiles) -> Picture:
    """The finding and its picture, or why there is none."""
    fields = {
        name: getattr(finding, name)
        for name in ('rule', 'severity', 'split', 'file', 'place', 'value')
    }
    fields |= {'message': finding.message, 'group': group}
    try:
        painted, alt, classes = _paint(finding, files)
    except UnreadableFile as error:
        return Picture(**fields, alt=f'no picture: {error}')
    return Picture(
        **fields,
        classes=classes,
        width=painted.shape[1],
        height=painted.shape[0],
        uri=page.data_uri(painted),
        alt=alt,
    )


_Painted = tuple[np.ndarray, str, tuple[str, ...]]


def _paint(finding: Finding, files: SampleFiles) -> _Painted:
    """Choose how to show it, from what the rule counts."""
    sample = files.sample
    rule = RULES.get(finding.rule)
    picture = rule.picture if rule is not None else 'boxes'
    if sample.mask and finding.file == sample.mask:
        if rule.unit == 'pixel' and _holds(files):
            try:
                return _wrong_pixels(finding, files, int(finding.value))
            except ValueError:
                return _both(files)
        return _both(files)
    if sample.mask and picture == 'pair':
        return _both(files)
    return _objects(finding, files, picture)


def _holds(files: SampleFiles) -> bool:
    return holds_indices(MaskFacts(mode=files.mask[1]), files.source.expected)


def _present(pixels: np.ndarray, expected: Expectations) -> tuple[str, ...]:
    """Names of the classes that a label map has."""
    if pixels.ndim == 3:
        return ()
    table = loaded_values(expected)
    stored = np.unique(low_bytes(pixels)).tolist()
    labels = sorted(
        {
            table.value[value]
            for value in stored
            if table.kind[value] == 'class'
        }
    )
    names = expected.classes
    return tuple(
        names[label] if label < len(names) else str(label) for label in labels
    )


def _wrong_pixels(
    finding: Finding, files: SampleFiles, value: int
) -> _Painted:
    pixels, _ = files.mask
    expected = files.source.expected
    height, width = fitted_size(*pixels.shape, files.max_side)
    table = loaded_values(expected)
    fine = np.isin(np.arange(_BYTE), list(table.fine))
    not_fine = ~fine[low_bytes(pixels)]
    if pixels.dtype.itemsize > 1:
        not_fine |= (pixels < 0) | (pixels >= _BYTE)
    small = nearest(pixels, height, width)
    try:
        image, size = files.image if files.sample.image else (None, ())
    except UnreadableFile:
        image, size = None, ()
    if image is not None and size == pixels.shape[::-1]:
        ground, what = resized(image, height, width), 'image'
    else:
        ground, what = coloured(small, expected), _MAP
    painted = paint_pixels(
        dimmed(ground),
        pool_any(pixels == value, height, width),
        pool_any(not_fine, height, width),
    )
    alt = f'{what} with pixels of value {value} marked, first {finding.place}'
    return painted, alt, _present(small, expected)


def _both(files: SampleFiles) -> _Painted:
    """Image and label map in one picture, as far as there are both."""
    pixels, _ = files.mask
    expected, side = files.source.expected, files.max_side
    shape = pixels.shape[:2]
    try:
        image, size = files.image if files.sample.image else (None, shape)
    except UnreadableFile:
        image, size = None, shape
    if image is None:
        small = nearest(pixels, *fitted_size(*shape, side))
        return coloured(small, expected), _MAP, _present(small, expected)
    stacked = size[0] > size[1]
    image = resized(image, *half_size(*size[::-1], side, stacked))
    small = nearest(pixels, *half_size(*shape, side, stacked))
    picture = together(image, coloured(small, expected), stacked)
    where = 'below' if stacked else 'beside'
    return (
        picture,
        f'image, and {where} it its {_MAP}',
        _present(small, expected),
    )


def _objects(finding: Finding, files: SampleFiles, picture: str) -> _Painted:
    """The image with its boxes."""
    if not files.sample.image:
        raise UnreadableFile('the sample has no image')
    if picture == 'alike':
        return _alike(finding, files)
    image, size = files.image
    sample = files.annotated
    wrong = wrong_boxes(finding, sample) if picture == 'boxes' else []
    boxes = files.boxes()
    painted = paint_boxes(
        image,
        size,
        [box.box for box in wrong],
        boxes,
        files.max_side,
        [box.mask_box for box in wrong if len(box.mask_box) == 4],
    )
    alt = f'image with {len(boxes)} boxes' if boxes else 'image'
    if wrong:
        alt = f'image with {len(wrong)} wrong of {len(boxes)} boxes marked'
    names = {box.class_name for box in wrong or sample.boxes} - {''}
    return painted, alt, tuple(sorted(names))


def _alike(finding: Finding, files: SampleFiles) -> _Painted:
    """The image, and the first other that the finding names."""
    others = (place.file for place in finding.related)
    other = next((name for name in others if name != finding.file), '')
    image, size = files.read_image(finding.file)
    try:
        second, second_size = files.read_image(other) if other else (None, ())
    except UnreadableFile:
        second = None
    if second is None:
        size = fitted_size(*size[::-1], files.max_side)
        return resized(image, *size), 'image', ()
    stacked = size[0] > size[1]
    pair = [
        resized(pixels, *half_size(*whole[::-1], files.max_side, stacked))
        for pixels, whole in ((image, size), (second, second_size))
    ]
    where = 'below' if stacked else 'beside'
    return together(*pair, stacked), f'image, and {where} it {other}', ()
