"""The folder that repaired files are written to."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mmengine.fileio import list_from_file

from ..facts import Sample
from ..sources.split_source import SplitSource
from .change_log import SampleList


def common_folder(folders: Iterable[str]) -> str:
    """The folder that holds all folders, paths or URLs; empty for none.

    ValueError if there is none, as for a path and a URL.
    """
    folders = sorted(folders)
    absolute = [
        folder if '://' in folder else os.path.abspath(folder)
        for folder in folders
    ]
    if not absolute:
        return ''
    try:
        common = os.path.commonpath(absolute)
    except ValueError:  # Of a path and a URL.
        common = ''
    if not common:
        raise ValueError(
            'label files of a run must have a folder in common, got '
            f'{folders[0]!r} and {folders[-1]!r}; repair one at a time'
        )
    if '://' in folders[0]:
        # The last names of a URL are a path, of which the scheme is none.
        common = common.replace(':/', '://', 1)
    return common


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


def write_lists(
    tree: Path,
    source: SplitSource,
    excluded: Sequence[Sample],
    folders: Mapping[str, Iterable[str]],
) -> SampleList | None:
    """List the samples that cannot be trained with; None if there are none.

    If a list of the split's own names its samples, lines are those of that
    list; otherwise names are those of images, or else of label files, without
    suffix, relative to the folder that holds all of this kind (``folders``:
    ``'image'``, ``'mask'``, ``'annotation'``).
    """
    if not excluded:
        return None
    split = source.expected.split
    name = re.sub('[^A-Za-z0-9.-]+', '_', split).strip('_') + '.txt'
    exclude_file, include_file = f'exclude_{name}', ''
    lines = _lines(source)
    if lines:
        bad = {sample.index for sample in excluded}
        left_out = [lines[index] for index in sorted(bad)]
        kept = [line for i, line in enumerate(lines) if i not in bad]
        include_file = f'include_{name}'
        _write(tree / include_file, kept)
    else:
        bases = {kind: common_folder(own) for kind, own in folders.items()}
        left_out = []
        for sample in excluded:
            kind = next(
                (kind for kind in ('image', 'mask') if getattr(sample, kind)),
                'annotation',
            )
            name = os.path.relpath(getattr(sample, kind), bases[kind])
            left_out.append(os.path.splitext(name)[0])
    _write(tree / exclude_file, left_out)
    return SampleList(
        split=split,
        excluded=len(excluded),
        exclude_file=exclude_file,
        include_file=include_file,
    )


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text(
        ''.join(f'{line}\n' for line in lines), errors='surrogateescape'
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
