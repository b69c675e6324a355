"""Name the files when a sample cannot be prepared.

A damaged image or mask ends, in a worker process, in an error of the decoder
or of the transform after it, which rarely says which file it was. MMEngine's
data sets prepare a sample in one method, ``prepare_data``. It is wrapped on
the instance: this works for the data sets of any config, needs no transform of
ours in its pipeline, and leaves the class, the attributes and the pipeline of
the data set what they were, so hooks that exchange a pipeline go on working.
"""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import cv2
import mmcv

from ..checks.config import walk_datasets

# Files are read by it, also in processes of data loaders.

# What transforms raise on data they cannot digest. Interrupts, exits and lack
# of memory are not about the sample and pass.
_SAMPLE_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    cv2.error,
)
_IMAGE_KEYS = ('img_path', 'filename')
# What can be decoded as a picture; other files go by their key.
_KINDS = {
    'img_path': 'image',
    'filename': 'image',
    'seg_map_path': 'mask',
}


class SampleError(ValueError):
    """A sample of a data set could not be prepared."""


def _files_of(dataset: Any, index: int) -> dict[str, str]:
    """Files of a sample by what they are, the image first."""
    info = dataset.get_data_info(index)
    if not isinstance(info, Mapping):
        return {}
    given = {
        key: str(info[key])
        for key in info
        if (key in _IMAGE_KEYS or str(key).endswith('_path'))
        and isinstance(info[key], str | PathLike)
        and str(info[key])
    }
    if 'img_path' in given:
        given.pop('filename', None)
    order = sorted(given, key=lambda key: key not in _IMAGE_KEYS)
    return {_KINDS.get(key, key): given[key] for key in order}


def _is_decodable(path: str) -> bool:
    for backend in ('cv2', 'pillow'):
        try:
            if mmcv.imread(path, backend=backend) is not None:
                return True
        except _SAMPLE_ERRORS:
            continue
    return False


def _fault(path: str, kind: str) -> str:
    """What is wrong with a file, and what to do; empty for nothing."""
    if '://' in path:
        return ''
    if not Path(path).is_file():
        return (
            'does not exist; put it back, or correct data_root and '
            'data_prefix of the data set'
        )
    if Path(path).stat().st_size == 0:
        return 'is empty; replace it, or remove it from the annotations'
    if kind in _KINDS.values() and not _is_decodable(path):
        return (
            'is no image that can be decoded; replace it, or remove it from '
            'the annotations'
        )
    return ''


def _diagnose(files: Mapping[str, str]) -> str:
    """What to say and do about a sample, from a second look at its files."""
    faults = []
    for kind, path in files.items():
        fault = _fault(path, kind)
        if fault:
            noun = 'the file' if len(files) == 1 else f'the {kind} file'
            faults.append(f'{noun} {fault}')
    if faults:
        return '; '.join(faults)
    if not files or any('://' in path for path in files.values()):
        return 'a step of its pipeline failed'
    if len(files) == 1:
        return 'the image is readable, a step of the pipeline failed on it'
    return 'the files are readable, a step of the pipeline failed on them'


class _NamingPrepare:
    """Callable in place of a data set's ``prepare_data``."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, idx: int) -> Any:
        dataset = self.dataset
        try:
            return type(dataset).prepare_data(dataset, idx)
        except SampleError:
            # Of a data set inside this one, which has named it.
            raise
        except _SAMPLE_ERRORS as error:
            files = _files_of(dataset, idx)
            names = ', '.join(
                f'{kind} {path!r}' for kind, path in files.items()
            )
            raise SampleError(
                f'sample {idx} of {type(dataset).__name__}, '
                f'{names or "without a file"}, '
                f'cannot be prepared: {_diagnose(files)}. The error was '
                f'{type(error).__name__}: {str(error).strip()}'
            ) from error


def name_failing_samples(dataset: Any) -> None:
    """Make a data set name the sample, and the image, that it fails on.

    The data set, of MMEngine's kind or a wrapper around some, is changed: it
    then raises :class:`SampleError` with the cause attached, for anything a
    transform raises; nothing is skipped.
    """
    for inner in walk_datasets(dataset):
        if hasattr(type(inner), 'prepare_data') and hasattr(
            inner, 'get_data_info'
        ):
            inner.prepare_data = _NamingPrepare(inner)
