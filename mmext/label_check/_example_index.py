"""Find the samples that findings are about, and the boxes in them."""

import re
from collections.abc import Iterable, Iterator

from .facts import BoxFacts, Sample
from .findings import Finding

__all__ = ['ExampleIndex', 'wrong_boxes']

# 'instance 3 of images/a.jpg', 'annotations[1], annotations[7] and 2 more'
_OF = ' of '
_BETWEEN = re.compile(', | and ')


def _words(finding: Finding) -> set[str]:
    """What a finding in a file of many images may call a sample by."""
    place = finding.place
    if not place:
        return {finding.value} - {''}
    return {place, place.partition(_OF)[2], *_BETWEEN.split(place)} - {''}


def wrong_boxes(finding: Finding, sample: Sample) -> list[BoxFacts]:
    """The boxes of a sample that a finding is about.

    Args:
        finding: Its place names a box; else its value a class or a label.
        sample: That it is about.

    Returns:
        Boxes of the sample; none if it is about the sample as a whole.
    """
    if finding.place:
        places = set(_BETWEEN.split(finding.place.partition(_OF)[0]))
        named = [box for box in sample.boxes if box.place in places]
        return named or [
            box
            for box in sample.boxes
            if finding.value
            == '(' + ', '.join(f'{side:g}' for side in box.box) + ')'
        ]
    return [
        box
        for box in sample.boxes
        if (box.label < 0 and box.class_name == finding.value)
        or str(box.label) == finding.value
    ]


class ExampleIndex:
    """Findings, looked up by sample.

    Args:
        findings: Number and finding, each to be found once.

    Note:
        A look-up takes as long as the sample has boxes, whatever the number
        of findings.
    """

    def __init__(self, findings: Iterable[tuple[int, Finding]]) -> None:
        self._left = dict(findings)
        self._by_file: dict[str, list[int]] = {}
        self._by_word: dict[tuple[str, str], list[int]] = {}
        for number, finding in self._left.items():
            self._by_file.setdefault(finding.file, []).append(number)
            for word in _words(finding):
                key = finding.file, word
                self._by_word.setdefault(key, []).append(number)

    def __len__(self) -> int:
        return len(self._left)

    def take(self, sample: Sample) -> dict[int, Finding]:
        """Findings about a sample; they are not found again.

        Args:
            sample: Of the split of the findings.

        Returns:
            Number and finding, by number.
        """
        own = [sample.image, sample.mask]
        if sample.annotation_kind:
            own.append(sample.annotation)
        numbers = {
            number
            for file in filter(None, own)
            for number in self._by_file.get(file, ())
        }
        if sample.annotation and not sample.annotation_kind:
            numbers.update(self._in_annotation(sample))
        return {
            number: self._left.pop(number)
            for number in sorted(numbers)
            if number in self._left
        }

    def _in_annotation(self, sample: Sample) -> Iterator[int]:
        """Of the file that may hold the boxes of all samples."""
        words = {sample.image}
        for box in sample.boxes:
            words.update((box.place, str(box.label)))
            if box.label < 0:
                words.add(box.class_name)
        for word in words - {''}:
            yield from self._by_word.get((sample.annotation, word), ())
