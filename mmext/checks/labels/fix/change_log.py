"""What a repair has done, and what it has left alone."""

from collections.abc import Mapping

import msgspec

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
        reason: Why this is safe, or why it was done.
    """

    rule: str
    split: str = ''
    file: str = ''
    new_file: str = ''
    place: str = ''
    was: str = ''
    now: str = ''
    count: int = 1
    reason: str = ''


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """One error of a file that was not repaired.

    Attributes:
        rule: Id of the rule that finds it.
        reason: Why it was not repaired.
    """

    rule: str
    reason: str


class FixedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A label file after its repair.

    Attributes:
        content: Bytes of the file; those that it had, if nothing was
            repaired.
        changes: What was repaired; empty for nothing.
        left: What was looked at and not repaired, and why.
    """

    content: bytes
    changes: tuple[Change, ...] = ()
    left: tuple[Left, ...] = ()


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
    """Lists that were written for a split.

    Attributes:
        split: ``'train'``, ``'val'``, ...
        excluded: Number of samples that cannot be trained with.
        exclude_file: Name of the list of them.
        include_file: Name of the list of the others; empty if the split has
            no list of its own that it could take the place of.
    """

    split: str
    excluded: int
    exclude_file: str
    include_file: str = ''


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
        """The same to be read.

        Returns:
            Some lines, without a line end after the last.
        """
        lines = [
            f'repaired {self.num_fixed:,} of {self.num_files:,} label files; '
            f'all of them are in {self.out}, each change is in fixes.jsonl'
        ]
        for rule, count in sorted(self.changes.items()):
            lines.append(f'  {rule}  {count:,} x {RULES[rule].title}')
        if self.not_repaired:
            lines.append('not repaired (fixes.json names all files):')
        for group in self.not_repaired:
            files = _number(len(group.files), 'file')
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
            more = ''
            if entry.include_file:
                more = f'; {entry.include_file} lists the others, for ann_file'
            lines.append(
                f'  {entry.split}: {entry.exclude_file} lists '
                f'{_number(entry.excluded, "sample")} that cannot be trained '
                f'with{more}'
            )
        return '\n'.join(lines)


def _number(count: int, noun: str) -> str:
    return f'{count:,} {noun}' if count == 1 else f'{count:,} {noun}s'
