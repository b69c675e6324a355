"""Reports and data sets that show all a page of a report has to show."""

from pathlib import Path

import numpy as np
from PIL import Image

from helpers.image_bytes import photo
from mmext.checks.findings import Finding
from mmext.checks.labels import Expectations
from mmext.checks.labels.expectations import SplitSource
from mmext.checks.labels.facts import BoxFacts, Sample
from mmext.checks.labels.report import (
    FindingGroup,
    Report,
)
from mmext.checks.labels.rules import RULES
from mmext.checks.labels.totals import ClassCounts, SplitReport


def finding(rule: str, **fields) -> Finding:
    """A finding of a rule that there is."""
    fields = {'message': RULES[rule].title, 'remedy': 'mend it'} | fields
    return RULES[rule].finding(**fields)


def group(rule: str, *examples: Finding, **fields) -> FindingGroup:
    """A group of findings of a rule."""
    splits = sorted({example.split for example in examples})
    fields = {
        'message': f'{RULES[rule].title}: {len(examples)}',
        'remedy': 'mend it',
        'num_files': len(examples),
        'num_findings': len(examples),
        'count': len(examples),
        'splits': tuple((split, 1) for split in splits),
    } | fields
    return FindingGroup(
        rule=rule, severity=RULES[rule].severity, examples=examples, **fields
    )


def report_of(*groups: FindingGroup, splits: tuple = ()) -> Report:
    """A report, its groups in the order that a check gives."""
    ordered = sorted(groups, key=lambda item: (-item.severity, item.rule))
    return Report(
        rules=tuple(RULES), splits=tuple(splits), groups=tuple(ordered)
    )


def split_of(split: str, pixels: list[int], names: tuple = ()) -> SplitReport:
    """A semantic split of ten label maps."""
    names = names or tuple(f'class {i}' for i in range(len(pixels)))
    classes = tuple(
        ClassCounts(label=i, name=name, pixels=count, masks=min(count, 10))
        for i, (name, count) in enumerate(zip(names, pixels))
    )
    return SplitReport(
        split=split,
        task='semantic',
        num_samples=10,
        num_images=10,
        num_masks=10,
        num_boxes=0,
        num_annotated=0,
        classes=classes,
    )


def save(path: Path, pixels: np.ndarray) -> str:
    """Write an image; the suffix says how."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return str(path)


def semantic_source(
    folder: Path, masks: dict[str, np.ndarray], split: str = 'train'
) -> SplitSource:
    """A split of label maps with images; 3 classes, 255 is ignored."""
    samples = [
        Sample(
            index=index,
            image=save(
                folder / 'images' / f'{name}.png',
                photo(index, *mask.shape[:2]),
            ),
            mask=save(folder / 'masks' / f'{name}.png', mask),
        )
        for index, (name, mask) in enumerate(masks.items())
    ]
    expected = Expectations(
        split=split, num_classes=3, classes=('road', 'car', 'sky')
    )
    return SplitSource(expected, lambda: iter(samples))


def box_source(
    folder: Path, boxes: dict[str, list[tuple]], annotation: str = ''
) -> SplitSource:
    """A split of grey images, 80 x 60, with boxes of the class cat."""
    grey = np.full((60, 80, 3), 128, np.uint8)
    samples = [
        Sample(
            index=index,
            image=save(folder / f'{name}.png', grey),
            annotation=annotation,
            boxes=tuple(
                BoxFacts(
                    box=box,
                    label=0,
                    class_name='cat',
                    location=f'instance {number}',
                )
                for number, box in enumerate(own)
            ),
        )
        for index, (name, own) in enumerate(boxes.items())
    ]
    expected = Expectations(task='detection', num_classes=1, classes=('cat',))
    return SplitSource(expected, lambda: iter(samples))
