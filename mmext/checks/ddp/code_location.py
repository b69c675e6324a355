"""Which line of whose code is running."""

import os
import sys
from collections.abc import Iterator, Sequence
from itertools import dropwhile
from types import FrameType

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_CHECKS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Code that watches the step, and is no part of it.
_WATCHERS = (
    os.path.join(_CHECKS, 'ddp') + os.sep,
    os.path.join(_CHECKS, 'preflight') + os.sep,
)
# Functions of this name in these files run a part under no_grad, to run it
# again in a nested backward.
_REENTRANT = ('forward', 'backward')
_CHECKPOINT_FILES = (
    os.path.join('torch', 'utils', 'checkpoint.py'),
    os.path.join('fairscale', 'nn', 'checkpoint', 'checkpoint_activations.py'),
)


def code_location(*, within_checkpoint: bool = False) -> str:
    """``file:line in function`` of the model's code that is running.

    Empty if there is none; ``within_checkpoint`` looks no further out than
    the checkpoint that is running.
    """
    for frame in _running():
        if within_checkpoint and _is_checkpoint(frame):
            break
        if not _is_ours(frame):
            return _location_of(frame, frame.f_lineno)
    return ''


def location_in(frames: Sequence[tuple[FrameType, int]]) -> str:
    """The same of frames with their lines, the innermost last."""
    for frame, line in reversed(frames):
        if not _is_ours(frame):
            return _location_of(frame, line)
    return ''


def running_frames() -> list[tuple[FrameType, int]]:
    """Frames that are running, with their lines, the innermost last."""
    return [(frame, frame.f_lineno) for frame in _running()][::-1]


def checkpoint_call_site() -> str:
    """Where the innermost reentrant checkpoint was called, or empty."""
    outside = dropwhile(lambda f: not _is_checkpoint(f, 'forward'), _running())
    return location_in([(f, f.f_lineno) for f in outside][::-1])


def reentrant_backward() -> int | None:
    """A number of the reentrant checkpoint whose backward runs, or None."""
    running = (id(f) for f in _running() if _is_checkpoint(f, 'backward'))
    return next(running, None)


def _running() -> Iterator[FrameType]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _location_of(frame: FrameType, line: int) -> str:
    """``file:line in function``, with the two innermost folders."""
    name = os.path.join(*frame.f_code.co_filename.split(os.sep)[-3:])
    return f'{name}:{line} in {frame.f_code.co_name}'


def _is_checkpoint(frame: FrameType, *names: str) -> bool:
    code = frame.f_code
    return code.co_name in (names or _REENTRANT) and (
        code.co_filename.endswith(_CHECKPOINT_FILES)
    )


def _is_ours(frame: FrameType) -> bool:
    """Whether it is PyTorch's, this package's, or made at run time."""
    return frame.f_code.co_filename.startswith((_TORCH, *_WATCHERS, '<'))
