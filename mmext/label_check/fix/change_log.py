"""What a repair has done, and what it has left alone."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

__all__ = [
    'Change',
    'ChangeLog',
    'FixedFile',
    'Left',
    'LeftGroup',
    'in_groups',
]


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
    """One error that was not repaired.

    Attributes:
        rule: Id of the rule that finds it.
        split: ``'train'``, ``'val'``, ...
        file: Path of the file as the data set names it.
        place: Where in the file; empty for all of it.
        reason: Why it was not repaired.
    """

    rule: str
    split: str = ''
    file: str = ''
    place: str = ''
    reason: str = ''


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


class ChangeLog:
    """Writes changes to a file as they come, one JSON object a line.

    Args:
        path: Of the file, which must not exist yet.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with ChangeLog(Path(folder, 'fixes.jsonl')) as log:
        ...         log.add([Change(rule='SEG011', count=1)])
        ...     log.by_rule, Path(folder, 'fixes.jsonl').read_text()[:16]
        ({'SEG011': 1}, '{"rule":"SEG011"')
    """

    def __init__(self, path: Path):
        self.by_rule: dict[str, int] = {}
        self._encoder = msgspec.json.Encoder()
        self._path = path

    def __enter__(self) -> 'ChangeLog':
        self._file = open(self._path, 'xb')
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    def add(self, changes: Iterable[Change]) -> None:
        """Write changes.

        Args:
            changes: Complete ones, with split and files.
        """
        for change in changes:
            count = self.by_rule.get(change.rule, 0)
            self.by_rule[change.rule] = count + 1
            self._file.write(self._encoder.encode(change) + b'\n')


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


def in_groups(left: Iterable[Left]) -> list[LeftGroup]:
    """Bring together what was left for the same reason.

    Args:
        left: In any order.

    Returns:
        Ordered by rule, split and reason.

    Examples:
        >>> left = [Left(rule='SEG001', file=name) for name in 'bab']
        >>> in_groups(left)[0].files
        ('a', 'b')
    """
    files: dict[tuple[str, str, str], set[str]] = {}
    for each in left:
        key = (each.rule, each.split, each.reason)
        files.setdefault(key, set()).add(each.file)
    return [
        LeftGroup(
            rule=rule, split=split, reason=reason, files=tuple(sorted(names))
        )
        for (rule, split, reason), names in sorted(files.items())
    ]
