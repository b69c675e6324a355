"""Where in a model an exception was raised."""

import os
from types import TracebackType

import torch
from torch import nn

from .._code_place import place_of

__all__ = ['error_place', 'modules_of_error']

_TORCH = os.path.dirname(torch.__file__) + os.sep
_PREFLIGHT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _frames(traceback: TracebackType | None) -> list[TracebackType]:
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    return frames


def modules_of_error(
    error: BaseException, model: nn.Module
) -> tuple[str, ...]:
    """Names of the modules whose code was running.

    Args:
        error: As it was caught.
        model: The model that holds the modules.

    Returns:
        The outermost first; the model itself is left out.
    """
    names = {id(module): name for name, module in model.named_modules()}
    found = {}
    for frame in _frames(error.__traceback__):
        name = names.get(id(frame.tb_frame.f_locals.get('self')), '')
        if name:
            found[name] = None
    return tuple(found)


def error_place(error: BaseException) -> str:
    """``file:line in function`` of the innermost code that is a model's.

    Args:
        error: As it was caught.

    Returns:
        The place, empty where only PyTorch's code was running.
    """
    for frame in reversed(_frames(error.__traceback__)):
        code = frame.tb_frame.f_code
        if not code.co_filename.startswith((_TORCH, _PREFLIGHT)):
            return place_of(frame.tb_frame, frame.tb_lineno)
    return ''
