"""Write a new tree of label files, with the errors repaired that can be."""

import msgspec

__all__ = ['Change', 'FixedFile']


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a label file."""

    rule: str  # Id of the rule whose finding it repairs.
    split: str = ''  # 'train', 'val', ...
    file: str = ''  # Path of the file as the data set names it.
    new_file: str = ''  # Path of the repaired file, relative to the new tree.
    # Where in the file, as in a finding: a position of the file as it was.
    location: str = ''
    was: str = ''  # Old content.
    now: str = ''  # New content; empty if the record is removed.
    count: int = 1  # Pixels, boxes or records that were changed.


class FixedFile(msgspec.Struct, frozen=True, kw_only=True):
    """New content of a label file, and its changes."""

    content: bytes
    changes: tuple[Change, ...] = ()
