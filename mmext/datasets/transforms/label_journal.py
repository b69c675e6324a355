"""A channel from loading processes to the hook that reports.

Transforms run in processes of the data loader, which may be forked or
spawned, live for an epoch or for the training, and be killed. What they pass
over is appended to a file that has the same path in all of them; a path
survives copies, pickling and forks, which locks and queues do not.
"""

import atexit
import fcntl
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ['JournalEntry', 'LabelJournal', 'Tally', 'tally']

# Journals of this process that nothing has closed.
_own: dict[Path, int] = {}


@dataclass(frozen=True)
class JournalEntry:
    """One sample that was not as it should be.

    Attributes:
        action: ``'skipped'``, ``'ignored'`` or ``'warned'``.
        file: That the label comes from.
        pixels: That are ignored now.
        text: What is wrong.
    """

    action: str
    file: str
    pixels: int = 0
    text: str = ''


@dataclass
class Tally:
    """What has happened to one file.

    Attributes:
        times: How often.
        pixels: That were ignored, in all.
        text: What was wrong the first time.
    """

    times: int = 0
    pixels: int = 0
    text: str = ''


def tally(entries: Iterable[JournalEntry]) -> dict[tuple[str, str], Tally]:
    """Sum entries up.

    Args:
        entries: In any number.

    Returns:
        For each action and file, in the order in which they first occur.

    Examples:
        >>> entry = JournalEntry('ignored', 'a.png', 3)
        >>> tally([entry, entry])[('ignored', 'a.png')].pixels
        6
    """
    found: dict[tuple[str, str], Tally] = {}
    for entry in entries:
        one = found.setdefault(
            (entry.action, entry.file), Tally(text=entry.text)
        )
        one.times += 1
        one.pixels += entry.pixels
    return found


class LabelJournal:
    """A file of entries that any process may append to.

    It is made by the first entry, in the folder for temporary files of this
    machine, and removed when the process that made the journal ends; what
    nobody has read until then is summed up on stderr.

    Attributes:
        path: Of the file.
    """

    def __init__(self) -> None:
        name = f'mmext_labels_{os.getpid()}_{uuid.uuid4().hex}.jsonl'
        self.path = Path(tempfile.gettempdir(), name)
        _own[self.path] = os.getpid()

    def append(self, entry: JournalEntry) -> None:
        """Add an entry. Waits for others that write or read.

        Args:
            entry: What has happened.
        """
        line = json.dumps(vars(entry)) + '\n'
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with open(os.open(self.path, flags, 0o600), 'ab') as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(line.encode())

    def drain(self) -> list[JournalEntry]:
        """Take all entries out.

        Returns:
            In the order in which they were written.
        """
        return _drain(self.path)


def _drain(path: Path) -> list[JournalEntry]:
    """Take all entries out of a file."""
    if not path.exists():
        return []
    with path.open('r+b') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = file.read().splitlines()
        file.truncate(0)
    return [JournalEntry(**json.loads(line)) for line in lines]


def _close_journals() -> None:
    """At the end of a process: nothing vanishes in silence."""
    for path, pid in list(_own.items()):
        if pid != os.getpid() or not path.exists():
            continue
        found = tally(_drain(path))
        path.unlink()
        if found:
            times = sum(each.times for each in found.values())
            files = sorted({file for _, file in found})
            print(
                f'ValidateLabels passed over label problems {times:,} '
                f'time(s), in {len(files):,} file(s) such as {files[0]}, that '
                'no hook has reported; add mmext.LabelReportHook to '
                'custom_hooks to have them listed',
                file=sys.stderr,
            )
    _own.clear()


atexit.register(_close_journals)
