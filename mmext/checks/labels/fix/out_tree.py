"""The folder that repaired files are written to."""

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from mmengine.fileio import list_from_file

from ..facts import Sample
from ..rules import RULES
from ..sources.split_source import SplitSource


def _parts(path: str) -> tuple[str, ...]:
    """Names of a path from its root on, for a URL from its scheme on."""
    scheme, mark, rest = path.partition('://')
    if not mark:
        return Path(os.path.abspath(path)).parts
    return (scheme + mark, *posixpath.normpath(rest).split('/'))


def _joined(parts: tuple[str, ...]) -> str:
    if parts and parts[0].endswith('://'):
        return parts[0] + '/'.join(parts[1:])
    return str(Path(*parts)) if parts else ''


def common_folder(folders: Iterable[str]) -> str:
    """The folder that holds all folders, paths or URLs; empty for none.

    ValueError if there is none, as for a path and a URL.
    """
    common: tuple[str, ...] | None = None
    for folder in folders:
        parts = _parts(folder)
        common = parts if common is None else common
        same = sum(1 for _ in iter_while_equal(common, parts))
        if not same:
            raise ValueError(
                'label files of a run must have a folder in common, got '
                f'{_joined(common)!r} and {folder!r}; repair one at a time'
            )
        common = common[:same]
    return _joined(common or ())


def iter_while_equal(
    one: Iterable[str], other: Iterable[str]
) -> Iterator[str]:
    """Elements as long as they are equal."""
    for first, second in zip(one, other):
        if first != second:
            return
        yield first


def relative_to(path: str, folder: str) -> str:
    """Where a file is to be in a new tree."""
    return '/'.join(_parts(path)[len(_parts(folder)) :])


def check_out(out: Path, folders: Iterable[str]) -> None:
    """Refuse a folder that holds something, or that is among the data.

    URLs are passed by.
    """
    if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        raise FileExistsError(
            f'--fix must name a folder that is not there, or an empty one, '
            f'got {str(out)!r}; nothing is ever overwritten'
        )
    real = Path(os.path.realpath(out))
    for name in folders:
        if '://' in name:
            continue
        folder = Path(os.path.realpath(name))
        if real == folder or folder in real.parents or real in folder.parents:
            raise ValueError(
                '--fix must be apart from the data, got '
                f'{str(out)!r} and the data folder {name!r}'
            )


NOT_TRAINABLE = frozenset(
    rule.id for rule in RULES.values() if rule.blocks_training
)


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


def _file_name(word: str, split: str) -> str:
    return f'{word}_{re.sub("[^A-Za-z0-9.-]+", "_", split).strip("_")}.txt'


def _stems(samples: Sequence[Sample], folder: str) -> list[str]:
    """Names of images, or else of label files, without suffix."""
    names = []
    for sample in samples:
        path = sample.image or sample.mask or sample.annotation
        name = relative_to(path, folder)
        names.append(name.rpartition('.')[0] or name)
    return names


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text(
        ''.join(f'{line}\n' for line in lines), errors='surrogateescape'
    )


def write_lists(
    tree: Path,
    source: SplitSource,
    excluded: Sequence[Sample],
    folders: Iterable[str],
) -> SampleList | None:
    """List the samples that cannot be trained with; None if there are none.

    If a list of the split's own names its samples, lines are those of that
    list; otherwise names are relative to the folder that holds all
    ``folders``.
    """
    if not excluded:
        return None
    split = source.expected.split
    exclude_file = _file_name('exclude', split)
    lines = _lines(source)
    if not lines:
        _write(tree / exclude_file, _stems(excluded, common_folder(folders)))
        return SampleList(
            split=split, excluded=len(excluded), exclude_file=exclude_file
        )
    bad = {sample.index for sample in excluded}
    include_file = _file_name('include', split)
    _write(tree / exclude_file, (lines[index] for index in sorted(bad)))
    _write(
        tree / include_file,
        (line for index, line in enumerate(lines) if index not in bad),
    )
    return SampleList(
        split=split,
        excluded=len(excluded),
        exclude_file=exclude_file,
        include_file=include_file,
    )


def _lines(source: SplitSource) -> list[str]:
    """Lines of the list that names the samples; empty if there is none."""
    path = source.list_file
    if not path:
        return []
    lines = list_from_file(path, backend_args=source.backend_args)
    samples = list(source.samples())
    fits = len(lines) == len(samples) and all(
        line.strip().partition(' ')[0] in (sample.image or sample.annotation)
        for line, sample in zip(lines, samples)
    )
    return lines if fits else []
