"""Name the file when a sample cannot be prepared.

A damaged image ends, in a worker process, in an error of the decoder or of
the transform after it, which rarely says which file it was. MMEngine's data
sets prepare a sample in one method, ``prepare_data``. It is wrapped on the
instance: this works for the data sets of any config, needs no transform of
ours in its pipeline, and leaves the class, the attributes and the pipeline of
the data set what they were, so hooks that exchange a pipeline go on working.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import mmcv

from ..datasets.dataset_walk import walk_datasets

__all__ = ['SampleError', 'name_failing_samples']

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


class SampleError(ValueError):
    """A sample of a data set could not be prepared."""


def _image_of(dataset: Any, index: int) -> str | None:
    info = dataset.get_data_info(index)
    if not isinstance(info, Mapping):
        return None
    return next((str(info[key]) for key in _IMAGE_KEYS if info.get(key)), None)


def _is_decodable(path: str) -> bool:
    try:
        return mmcv.imread(path) is not None
    except _SAMPLE_ERRORS:
        return False


def _diagnose(path: str | None) -> str:
    """What to say and do about a sample, from a second look at its file."""
    if path is None or '://' in path:
        return 'a step of its pipeline failed'
    if not Path(path).is_file():
        return (
            'the file does not exist; put it back, or correct data_root '
            'and data_prefix of the data set'
        )
    if Path(path).stat().st_size == 0:
        return (
            'the file is empty; replace it, or remove it from the annotations'
        )
    if not _is_decodable(path):
        return (
            'the file is no image that can be decoded; replace it, or '
            'remove it from the annotations'
        )
    return 'the image is readable, a step of the pipeline failed on it'


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
            path = _image_of(dataset, idx)
            raise SampleError(
                f'sample {idx} of {type(dataset).__name__}, image {path!r}, '
                f'cannot be prepared: {_diagnose(path)}. The error was '
                f'{type(error).__name__}: {str(error).strip()}'
            ) from error


def name_failing_samples(dataset: Any) -> None:
    """Make a data set name the sample, and the image, that it fails on.

    The data set then raises :class:`SampleError` with the cause attached,
    for anything a transform raises; nothing is skipped.

    Args:
        dataset: A data set of MMEngine's kind, or a wrapper around some.
            It is changed. One without ``prepare_data`` is left as it is.
    """
    for inner in walk_datasets(dataset):
        if hasattr(type(inner), 'prepare_data') and hasattr(
            inner, 'get_data_info'
        ):
            inner.prepare_data = _NamingPrepare(inner)
