"""Which line of whose code is running."""

import os
import sys
from types import FrameType

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_CHECKS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_MMEXT = os.path.dirname(_CHECKS)
# Code that watches the step, and is no part of it.
_WATCHERS = (
    os.path.join(_CHECKS, 'ddp') + os.sep,
    os.path.join(_CHECKS, 'preflight') + os.sep,
    os.path.join(_MMEXT, 'engine', 'distributed') + os.sep,
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
    frame = sys._getframe(1)
    while frame is not None:
        if within_checkpoint and _is_checkpoint(frame):
            return ''
        if not _is_ours(frame):
            return location_of(frame, frame.f_lineno)
        frame = frame.f_back
    return ''


def location_of(frame: FrameType, line: int) -> str:
    """``file:line in function``, with the two innermost folders."""
    name = os.path.join(*frame.f_code.co_filename.split(os.sep)[-3:])
    return f'{name}:{line} in {frame.f_code.co_name}'


def checkpoint_call_site() -> str:
    """Where the innermost reentrant checkpoint was called, or empty."""
    frame = sys._getframe(1)
    while frame is not None and not _is_checkpoint(frame, 'forward'):
        frame = frame.f_back
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    return location_of(frame, frame.f_lineno) if frame is not None else ''


def reentrant_backward() -> int | None:
    """A number of the reentrant checkpoint whose backward runs, or None."""
    frame = sys._getframe(1)
    while frame is not None:
        if _is_checkpoint(frame, 'backward'):
            return id(frame)
        frame = frame.f_back
    return None


def _is_checkpoint(frame: FrameType, *names: str) -> bool:
    code = frame.f_code
    return code.co_name in (names or _REENTRANT) and (
        code.co_filename.endswith(_CHECKPOINT_FILES)
    )


def _is_ours(frame: FrameType) -> bool:
    """Whether it is PyTorch's or this package's."""
    return frame.f_code.co_filename.startswith((_TORCH, *_WATCHERS))
