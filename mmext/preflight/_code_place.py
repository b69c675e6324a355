"""Which line of whose code is running."""

import os
import sys
from types import FrameType

import torch

__all__ = [
    'checkpoint_call_site',
    'code_place',
    'place_of',
    'reentrant_backward',
    'user_frame',
]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Functions of this name in these files run a part under no_grad, to run it
# again in a nested backward.
_REENTRANT = ('forward', 'backward')
_CHECKPOINT_FILES = (
    os.path.join('torch', 'utils', 'checkpoint.py'),
    os.path.join('fairscale', 'nn', 'checkpoint', 'checkpoint_activations.py'),
)


def _is_checkpoint(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name in _REENTRANT and code.co_filename.endswith(
        _CHECKPOINT_FILES
    )


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((_TORCH, _HERE))


def user_frame(*, within_checkpoint: bool = False) -> FrameType | None:
    """The innermost frame that is neither PyTorch's nor of this package.

    Args:
        within_checkpoint: Look no further out than the checkpoint that is
            running.

    Returns:
        The frame, or None.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if within_checkpoint and _is_checkpoint(frame):
            return None
        if not _is_ours(frame):
            return frame
        frame = frame.f_back
    return None


def code_place(*, within_checkpoint: bool = False) -> str:
    """``file:line in function`` of the running code, or an empty string.

    Args:
        within_checkpoint: As of :func:`user_frame`.
    """
    frame = user_frame(within_checkpoint=within_checkpoint)
    return place_of(frame, frame.f_lineno) if frame is not None else ''


def place_of(frame: FrameType, line: int) -> str:
    """``file:line in function`` of some code.

    Args:
        frame: It is running there, or was.
        line: In its file.
    """
    # Folders above the package say nothing.
    name = os.path.join(*frame.f_code.co_filename.split(os.sep)[-3:])
    return f'{name}:{line} in {frame.f_code.co_name}'


def checkpoint_call_site() -> str:
    """Where the reentrant checkpoint was called that runs its part now.

    Returns:
        ``file:line in function`` of the innermost one, or an empty string
        outside of any.
    """
    frame = sys._getframe(1)
    while frame is not None and not _starts_checkpoint(frame):
        frame = frame.f_back
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    return place_of(frame, frame.f_lineno) if frame is not None else ''


def _starts_checkpoint(frame: FrameType) -> bool:
    return _is_checkpoint(frame) and frame.f_code.co_name == 'forward'


def reentrant_backward() -> int | None:
    """Which reentrant checkpoint is in its backward, if any is.

    Returns:
        A number that is the same throughout one backward of one checkpoint.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if _is_checkpoint(frame) and frame.f_code.co_name == 'backward':
            return id(frame)
        frame = frame.f_back
    return None
