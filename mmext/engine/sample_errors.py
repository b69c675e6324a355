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

from ..checks.config import walk_datasets
from ..checks.findings import ErrorCatcher
from ..utils.files import open_regular

# What can be decoded as a picture, best first; other files go by their key.
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
    files: dict[str, str] = {}
    for key in (*_KINDS, *info):
        path = info.get(key)
        if (
            (key in _KINDS or str(key).endswith('_path'))
            and isinstance(path, str | PathLike)
            and str(path)
        ):
            files.setdefault(_KINDS.get(key, key), str(path))
    return files


def _fault(path: str, kind: str) -> str:
    """What is wrong with a file, and what to do; empty for nothing."""
    if '://' in path:
        return ''
    try:
        open_regular(path).close()
    except FileNotFoundError:
        return (
            'does not exist; put it back, or correct data_root and '
            'data_prefix of the data set'
        )
    except OSError as error:
        return f'cannot be opened: {error}'
    if Path(path).stat().st_size == 0:
        return 'is empty; replace it, or remove it from the annotations'
    if kind not in _KINDS.values():
        return ''
    import mmcv

    for backend in ('cv2', 'pillow'):
        with ErrorCatcher(lambda error: None):
            if mmcv.imread(path, backend=backend) is not None:
                return ''
    return (
        'is no image that can be decoded; replace it, or remove it from the '
        'annotations'
    )


class _NamingPrepare:
    """Callable in place of a data set's ``prepare_data``."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, idx: int) -> Any:
        dataset = self.dataset
        try:
            return type(dataset).prepare_data(dataset, idx)
        except (SampleError, MemoryError):
            # A data set inside this one has named it; or it is not about it.
            raise
        except Exception as error:
            files = _files_of(dataset, idx)
            reason = 'its files are readable, a step of the pipeline failed'
            if not files or any('://' in path for path in files.values()):
                reason = 'a step of its pipeline failed'
            # From a second look at them.
            faults = []
            for kind, path in files.items():
                noun = 'the file' if len(files) == 1 else f'the {kind} file'
                if fault := _fault(path, kind):
                    faults.append(f'{noun} {fault}')
            names = ', '.join(
                f'{kind} {path!r}' for kind, path in files.items()
            )
            raise SampleError(
                f'sample {idx} of {type(dataset).__name__}, '
                f'{names or "without a file"}, '
                f'cannot be prepared: {"; ".join(faults) or reason}. The '
                f'error was {type(error).__name__}: {str(error).strip()}'
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
