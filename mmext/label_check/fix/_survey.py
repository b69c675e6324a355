"""Look over a data set before it is repaired: folders, and classes seen."""

from collections.abc import Iterator, Sequence

from ..check import sample_facts
from ..expectations import Expectations
from ..facts import MaskFacts, Sample
from ..loaded import INDEX_MODES, loaded_values
from ..sources import SplitSource
from ..store import FactStore

__all__ = ['Survey', 'folder_of', 'label_files', 'other_file', 'survey']


def folder_of(path: str) -> str:
    """Folder of a file, by path or URL.

    Examples:
        >>> folder_of('s3://data/a.png'), folder_of('a.png')
        ('s3://data', '.')
    """
    return path.rpartition('/')[0] or ('/' if path[:1] == '/' else '.')


def label_files(sample: Sample) -> Iterator[tuple[str, str]]:
    """Kind and path of each label file that is the sample's own.

    Args:
        sample: Of a split.

    Yields:
        ``'mask'`` or ``'voc'``, and the path.
    """
    if sample.mask:
        yield 'mask', sample.mask
    if sample.annotation_kind:
        yield sample.annotation_kind, sample.annotation


def other_file(source: SplitSource, sample: Sample) -> str:
    """Annotation file in a form that is not repaired.

    Args:
        source: A split.
        sample: Of it.

    Returns:
        Its path; empty if there is none. What a semantic data set names is
        a list of its samples.
    """
    if source.coco is not None or source.expected.task == 'semantic':
        return ''
    return '' if sample.annotation_kind else sample.annotation


class Survey:
    """What is known of a split before its repair.

    Attributes:
        masks: Folders of its label maps.
        annotations: Folders of its annotation files.
        others: Annotation files in a form that is not repaired.
        images: Folders of its images.
        seen: Classes that have a pixel.
    """

    def __init__(self) -> None:
        self.masks: set[str] = set()
        self.annotations: set[str] = set()
        self.others: set[str] = set()
        self.images: set[str] = set()
        self.seen: set[int] = set()

    def labels(self) -> set[str]:
        """Folders of label files of any kind."""
        return self.masks | self.annotations | set(map(folder_of, self.others))

    def add(self, sample: Sample, other: str) -> None:
        """Add the folders of a sample."""
        if other:
            self.others.add(other)
        for kind, path in label_files(sample):
            folders = self.masks if kind == 'mask' else self.annotations
            folders.add(folder_of(path))
        if sample.image:
            self.images.add(folder_of(sample.image))

    def add_values(self, mask: MaskFacts, expected: Expectations) -> None:
        """Add the classes of a label map."""
        if mask.error or mask.mode not in INDEX_MODES:
            return
        table = loaded_values(expected)
        for value, _ in mask.values:
            if 0 <= value < len(table.kind) and table.kind[value] == 'class':
                self.seen.add(table.value[value])


def survey(
    sources: Sequence[SplitSource], store: FactStore
) -> tuple[list[Survey], list[tuple[int, ...]]]:
    """Look over all splits.

    Args:
        sources: The splits.
        store: With the facts of their files.

    Returns:
        For each split what is known of it; and the classes that have no
        pixel in any split that is read as this one.
    """
    surveys = []
    seen: dict[tuple, set[int]] = {}
    for source in sources:
        own = Survey()
        surveys.append(own)
        for facts in sample_facts(source, store):
            own.add(facts.sample, other_file(source, facts.sample))
            if facts.mask is not None:
                own.add_values(facts.mask, source.expected)
        if source.coco is not None:
            own.annotations.add(folder_of(source.coco().path))
        for orphan in source.orphans():
            if orphan.kind == 'mask':
                own.masks.add(folder_of(orphan.path))
            elif orphan.kind == 'annotation':
                own.annotations.add(folder_of(orphan.path))
        seen.setdefault(_read_as(source.expected), set()).update(own.seen)
    unseen = [
        tuple(
            label
            for label in range(source.expected.num_classes)
            if label not in seen[_read_as(source.expected)]
            and label != source.expected.ignore_index
        )
        for source in sources
    ]
    return surveys, unseen


def _read_as(expected: Expectations) -> tuple:
    return (
        expected.num_classes,
        expected.ignore_index,
        expected.reduce_zero_label,
        expected.label_map,
    )
