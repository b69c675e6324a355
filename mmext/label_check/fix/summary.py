"""What a repair has done, in all."""

from collections.abc import Mapping

import msgspec

from ..rules import RULES
from .change_log import LeftGroup
from .sample_lists import SampleList

__all__ = ['FixSummary', 'NewPlace']

SCHEMA_VERSION = 1


def _number(count: int, noun: str) -> str:
    return f'{count:,} {noun}' if count == 1 else f'{count:,} {noun}s'


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

    schema_version: int = SCHEMA_VERSION
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
        for each in self.lists:
            more = ''
            if each.include_file:
                more = f'; {each.include_file} lists the others, for ann_file'
            lines.append(
                f'  {each.split}: {each.exclude_file} lists '
                f'{_number(each.excluded, "sample")} that cannot be trained '
                f'with{more}'
            )
        return '\n'.join(lines)
