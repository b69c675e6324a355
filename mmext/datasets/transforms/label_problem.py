"""What is wrong with the labels of a sample, and how it is said."""

import atexit
import json
import os
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...utils.files import lock_file
from ...utils.label_spec import LabelSpec
from ...utils.printing import say
from .. import box_limits

# What steps that resize, pad or crop leave behind.
_SIZE_KEYS = ('scale_factor', 'pad_shape', 'crop_size', 'border')


class SampleSpec(LabelSpec, frozen=True, kw_only=True):
    """What the labels of a sample must be.

    Attributes:
        num_seg_classes: ``num_classes`` of pixels; that of boxes is another.
        box_tolerance: Pixels by which a box may stick out of the image.
        min_size: Width and height of a box are at least this.
        mask_box_iou: Overlap with the box around its mask from which on a
            box may differ from that.
    """

    num_seg_classes: int = 0
    box_tolerance: float = box_limits.BORDER_TOLERANCE
    min_size: float = 0.0
    mask_box_iou: float = 1.0


@dataclass(frozen=True)
class LabelProblem:
    """One thing that is wrong with the labels of a sample.

    Attributes:
        field: Key of the sample, such as ``'gt_seg_map'``.
        message: Facts, with value, location and what is allowed.
        remedy: What to do about it.
        count: Pixels, boxes, labels or masks that are wrong.
        rule: Id of the rule of ``tools/validate_labels.py`` that finds the
            same in the files; empty for what only a pipeline can get wrong.
    """

    field: str
    message: str
    remedy: str
    count: int = 1
    rule: str = ''


class LabelError(ValueError):
    """The labels of a sample are not what the training needs.

    Args:
        message: For the user.
        problems: The facts; empty after a trip through a data loader of
            PyTorch, which keeps the text alone.
    """

    def __init__(
        self, message: str, problems: Sequence[LabelProblem] = ()
    ) -> None:
        super().__init__(message)
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.problems)


def file_of(results: Mapping[str, Any], field: str = '') -> str:
    """The label map for labels of pixels, else the image, else words."""
    keys = ('img_path', 'filename', 'seg_map_path')
    if field.startswith('gt_seg_map'):
        keys = (field.removeprefix('gt_') + '_path', 'seg_map_path', *keys)
    paths = (str(results[key]) for key in keys if results.get(key))
    return next(paths, 'a sample without img_path')


def image_size(
    results: Mapping[str, Any], field: str = ''
) -> tuple[int, int] | None:
    """Height and width of the image of a sample; None if it tells none.

    For labels at ``field`` that were loaded after the image was resized, as
    pipelines for evaluation do, those of the image as it was.
    """
    shape = getattr(results.get('img'), 'shape', results.get('img_shape'))
    if is_loaded_late(results, field):
        shape = results.get('ori_shape', shape)
    return None if shape is None else (int(shape[0]), int(shape[1]))


def is_loaded_late(results: Mapping[str, Any], field: str) -> bool:
    """Whether labels came into a sample after its image changed its size.

    A sample is one dict from the first step of a pipeline to the last, and
    has its keys in the order in which steps put them there.
    """
    keys = [key for key in results if key == field or key in _SIZE_KEYS]
    return field in keys and keys[0] != field


def as_array(values: Any) -> np.ndarray:
    """Array, CPU tensor or boxes of mmdet as numbers, if possible uncopied."""
    return np.asarray(getattr(values, 'tensor', values))


def describe(
    results: Mapping[str, Any], problems: Sequence[LabelProblem]
) -> str:
    """The files of a sample's problems, then each problem with its remedy."""
    files = dict.fromkeys(
        file_of(results, problem.field) for problem in problems
    )
    number = len(problems)
    lines = [
        f'{number} label problem{"s" if number > 1 else ""} in '
        f'{", ".join(files)}'
    ]
    image = file_of(results)
    if image not in files:
        lines[0] += f' (image {image})'
    for problem in problems:
        rule = f'{problem.rule} ' if problem.rule else ''
        lines.append(f'  {rule}{problem.field}: {problem.message}')
        lines.append(f'    {problem.remedy}')
    return '\n'.join(lines)


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
    """Sum up by action and file, in the order in which they first occur."""
    tallies: dict[tuple[str, str], Tally] = {}
    for entry in entries:
        one = tallies.setdefault(
            (entry.action, entry.file), Tally(text=entry.text)
        )
        one.times += 1
        one.pixels += entry.pixels
    return tallies


class LabelJournal:
    """A file of entries that any process may append to.

    It is made by the first entry, in the folder for temporary files of this
    machine, and removed when the process that made the journal ends; what
    nobody has read until then is summed up on stderr.

    """

    def __init__(self) -> None:
        name = f'mmext_labels_{os.getpid()}_{uuid.uuid4().hex}.jsonl'
        self.path = Path(tempfile.gettempdir(), name)
        _own[self.path] = os.getpid()

    def append(self, entry: JournalEntry) -> None:
        """Add an entry. Waits for others that write or read.

        On a file system without locks, an entry that is added in the very
        moment in which another process takes all out may be lost.
        """
        line = json.dumps(vars(entry)) + '\n'
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with open(os.open(self.path, flags, 0o600), 'ab') as file:
            lock_file(file, wait=True)
            file.write(line.encode())

    def drain(self) -> list[JournalEntry]:
        """Take all entries out, in the order in which they were written."""
        return _drain(self.path)


def _drain(path: Path) -> list[JournalEntry]:
    """Take all entries out of a file."""
    if not path.exists():
        return []
    with path.open('r+b') as file:
        lock_file(file, wait=True)
        lines = file.read().splitlines()
        file.truncate(0)
    return [JournalEntry(**json.loads(line)) for line in lines]


def _close_journals() -> None:
    """At the end of a process: nothing vanishes in silence."""
    for path, pid in list(_own.items()):
        if pid != os.getpid() or not path.exists():
            continue
        tallies = tally(_drain(path))
        path.unlink()
        if tallies:
            times = sum(entry.times for entry in tallies.values())
            files = sorted({file for _, file in tallies})
            say(
                f'ValidateLabels passed over label problems {times:,} '
                f'time(s), in {len(files):,} file(s) such as {files[0]}, that '
                'no hook has reported; add mmext.LabelReportHook to '
                'custom_hooks to have them listed',
                error=True,
            )
    _own.clear()


atexit.register(_close_journals)
