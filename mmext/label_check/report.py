"""The result of a check, and its JSON form."""

import msgspec

from .expectations import Expectations
from .findings import Severity
from .groups import FindingGroup
from .loaded import count_classes
from .totals import SplitTotals

__all__ = [
    'ClassCounts',
    'Report',
    'SplitReport',
    'make_split_report',
    'report_json',
    'report_schema',
]

SCHEMA_VERSION = 1


class ClassCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is of a class in a split.

    Attributes:
        label: Index of the class.
        name: Of the class; empty if not known.
        pixels: After loading, over all label maps.
        masks: Label maps that have it.
        area: Pixels of these label maps, all classes.
        boxes: Objects that are not ignored.
        images: Samples that have such an object.
    """

    label: int
    name: str = ''
    pixels: int = 0
    masks: int = 0
    area: int = 0
    boxes: int = 0
    images: int = 0


class SplitReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one split holds.

    Attributes:
        split: ``'train'``, ``'val'``, ...
        task: As in Expectations.
        num_samples: Samples.
        num_images: Images that could be read.
        num_masks: Label maps that could be read.
        num_boxes: Objects that are not ignored.
        classes: One for each class, in order.
    """

    split: str
    task: str
    num_samples: int
    num_images: int
    num_masks: int
    num_boxes: int
    classes: tuple[ClassCounts, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a check has found.

    Equal for equal data, however the files were read.

    Attributes:
        schema_version: Of this form; it grows when a field changes meaning.
        rules: Ids of the rules that were applied.
        splits: What was looked at.
        groups: What was found, the worst first.
    """

    schema_version: int = SCHEMA_VERSION
    rules: tuple[str, ...] = ()
    splits: tuple[SplitReport, ...] = ()
    groups: tuple[FindingGroup, ...] = ()

    def worst(self) -> Severity | None:
        """The severity of the worst finding; None without any."""
        return max((each.severity for each in self.groups), default=None)


def make_split_report(
    totals: SplitTotals, expected: Expectations
) -> SplitReport:
    """Sum up a split.

    Args:
        totals: Of its samples.
        expected: Of the same split.

    Returns:
        Its numbers, with a row for each class.
    """
    number = max(expected.num_classes, len(expected.classes))
    pixels, masks, area = (
        count_classes(counts, expected)
        for counts in (totals.pixels, totals.masks, totals.area)
    )
    rows = []
    for label in range(number):
        known = label < len(expected.classes)
        rows.append(
            ClassCounts(
                label=label,
                name=expected.classes[label] if known else '',
                pixels=pixels.get(label, 0),
                masks=masks.get(label, 0),
                area=area.get(label, 0),
                boxes=totals.boxes.get(label, 0),
                images=totals.box_images.get(label, 0),
            )
        )
    return SplitReport(
        split=expected.split,
        task=expected.task,
        num_samples=totals.num_samples,
        num_images=totals.num_images,
        num_masks=totals.num_masks,
        num_boxes=sum(totals.boxes.values()),
        classes=tuple(rows),
    )


def report_json(report: Report) -> bytes:
    """JSON of a report: two blanks of indent, keys in a fixed order.

    Args:
        report: Of a check.

    Returns:
        UTF-8, with a newline at the end.
    """
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b'\n'


def report_schema() -> bytes:
    """JSON Schema (2020-12) of what :func:`report_json` writes.

    Returns:
        UTF-8, with a newline at the end. Severities are 0 (note), 1
        (warning) and 2 (error).
    """
    schema = {
        '$schema': 'https://json-schema.org/draft/2020-12/schema',
        **msgspec.json.schema(Report),
    }
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b'\n'
