"""What a repair has done, and what it has left alone."""

from collections.abc import Mapping

import msgspec

from ..report import many
from ..rules.registry import RULES


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a label file.

    Attributes:
        rule: Id of the rule whose finding it repairs.
        split: ``'train'``, ``'val'``, ...
        file: Path of the file as the data set names it.
        new_file: Path of the repaired file, relative to the new tree.
        place: Where in the file, as in a finding: a position of the file as
            it was.
        was: What was there.
        now: What is there now; empty for nothing.
        count: Pixels, boxes or records that were changed.
    """

    rule: str
    split: str = ''
    file: str = ''
    new_file: str = ''
    place: str = ''
    was: str = ''
    now: str = ''
    count: int = 1


class FixedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A label file after its repair, and what was done.

    ``problem`` says why it cannot be edited at all, if it cannot.
    """

    content: bytes
    changes: tuple[Change, ...] = ()
    problem: str = ''


class LeftGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of one kind that were not repaired, for one reason.

    Attributes:
        rule: Id of the rule that finds them.
        split: ``'train'``, ``'val'``, ...
        reason: Why they were not repaired.
        files: All files that have them, in order; each once.
    """

    rule: str
    split: str
    reason: str
    files: tuple[str, ...]


class NewPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the repaired labels of a split are.

    Attributes:
        split: ``'train'``, ``'val'``, ...
        key: Of the config of the data set, such as
            ``'data_prefix.seg_map_path'``.
        was: Folder or file that the labels were in.
        now: Folder or file to name instead; an absolute path.
    """

    split: str
    key: str
    was: str
    now: str


class SampleList(msgspec.Struct, frozen=True, kw_only=True):
    """A list of the samples of a split that cannot be trained with.

    Attributes:
        split: ``'train'``, ``'val'``, ...
        excluded: Number of samples in it.
        exclude_file: Its name.
    """

    split: str
    excluded: int
    exclude_file: str


class FixSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair has done, in all.

    Attributes:
        schema_version: Of this form; it grows when a field changes meaning.
        out: Folder of the repaired files.
        num_files: Label files in it.
        num_fixed: Those that differ from what they were.
        changes: Id of a rule to the number of its changes.
        places: What to name in the config.
        lists: Lists of samples that cannot be trained with.
        not_repaired: What is left, and why.
    """

    schema_version: int = 1
    out: str
    num_files: int
    num_fixed: int
    changes: Mapping[str, int]
    places: tuple[NewPlace, ...] = ()
    lists: tuple[SampleList, ...] = ()
    not_repaired: tuple[LeftGroup, ...] = ()

    def text(self) -> str:
        """The same to be read, in lines."""
        lines = [
            f'repaired {self.num_fixed:,} of {self.num_files:,} label files; '
            f'all of them are in {self.out}, each change is in fixes.jsonl'
        ]
        for rule, count in sorted(self.changes.items()):
            lines.append(f'  {rule}  {count:,} x {RULES[rule].title}')
        if self.not_repaired:
            lines.append('not repaired (fixes.json names all files):')
        for group in self.not_repaired:
            files = many(len(group.files), 'file')
            lines.append(
                f'  {group.rule}  {group.split}, {files}: {group.reason}'
            )
        places = self.places if self.num_fixed else ()
        if places:
            lines.append('to train with the repaired files, set')
        for place in places:
            lines.append(
                f'  {place.split}: {place.key}={place.now!r}, which was '
                f'{place.was!r}'
            )
        for entry in self.lists:
            lines.append(
                f'  {entry.split}: {entry.exclude_file} lists '
                f'{many(entry.excluded, "sample")} that cannot be trained with'
            )
        return '\n'.join(lines)
