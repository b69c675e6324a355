"""What a repair has done, and what it has left alone."""

from collections.abc import Mapping

import msgspec

from ..report import many
from ..rules.registry import RULES


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a label file."""

    rule: str  # Id of the rule whose finding it repairs.
    split: str = ''  # 'train', 'val', ...
    file: str = ''  # Path of the file as the data set names it.
    new_file: str = ''  # Path of the repaired file, relative to the new tree.
    # Where in the file, as in a finding: a position of the file as it was.
    place: str = ''
    was: str = ''  # What was there.
    now: str = ''  # What is there now; empty for nothing.
    count: int = 1  # Pixels, boxes or records that were changed.


class FixedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A label file after its repair, and what was done.

    ``problem`` says why it cannot be edited at all, if it cannot.
    """

    content: bytes
    changes: tuple[Change, ...] = ()
    problem: str = ''


class LeftGroup(msgspec.Struct, frozen=True):
    """Errors of one kind that were not repaired, for one reason."""

    rule: str  # Id of the rule that finds them.
    split: str  # 'train', 'val', ...
    reason: str  # Why they were not repaired.
    files: tuple[str, ...]  # All files that have them, in order; each once.


class NewPlace(msgspec.Struct, frozen=True):
    """Where the repaired labels of a split are."""

    split: str  # 'train', 'val', ...
    # Of the config of the data set, such as 'data_prefix.seg_map_path'.
    key: str
    was: str  # Folder or file that the labels were in.
    now: str  # Folder or file to name instead; an absolute path.


class SampleList(msgspec.Struct, frozen=True):
    """A list of the samples of a split that cannot be trained with."""

    split: str  # 'train', 'val', ...
    excluded: int  # Number of samples in it.
    exclude_file: str  # Its name.


class FixSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair has done, in all."""

    # Of this form; it grows when a field changes meaning.
    schema_version: int = 1
    out: str  # Folder of the repaired files.
    num_files: int  # Label files in it.
    num_fixed: int  # Those that differ from what they were.
    changes: Mapping[str, int]  # Id of a rule to the number of its changes.
    places: tuple[NewPlace, ...] = ()  # What to name in the config.
    # Lists of samples that cannot be trained with.
    lists: tuple[SampleList, ...] = ()
    not_repaired: tuple[LeftGroup, ...] = ()  # What is left, and why.

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
