"""Keep the exception of one part from ending all the others."""

import os
import site
import sysconfig
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any

_STANDARD = sysconfig.get_paths()['stdlib'] + os.sep
_PACKAGES = tuple(
    path + os.sep
    for path in {sysconfig.get_paths()['purelib'], *site.getsitepackages()}
)
# Code that everything goes through, which says nothing of a cause.
_GENERAL = tuple(
    os.path.join(path, name)
    for path in _PACKAGES
    for name in ('torch/', 'mmengine/registry', 'mmengine/config')
)


class ErrorCatcher(AbstractContextManager):
    """Hand the exception of a block over, so that it ends nothing else.

    Whoever takes it must report it. What is not an ``Exception``, such as
    ``KeyboardInterrupt``, is raised.

    Args:
        take: Called with the exception.

    Examples:
        >>> caught = []
        >>> with ErrorCatcher(caught.append):
        ...     int('x')
        >>> caught
        [ValueError("invalid literal for int() with base 10: 'x'")]
    """

    def __init__(self, take: Callable[[Exception], Any]) -> None:
        self._take = take

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Hand an exception over."""
        if not isinstance(error, Exception):
            return False
        self._take(error)
        return True


def frames_of(error: BaseException) -> list[tuple[FrameType, int]]:
    """Frames and lines that an exception went through, the innermost last."""
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return frames


def code_location(error: BaseException, *, skip: str = '') -> str:
    """``file:line in function`` of the innermost code that tells something.

    Code of PyTorch, of the registries, of the standard library and of the
    folder ``skip`` is passed over. Empty where there is no other.
    """
    for frame, line in reversed(frames_of(error)):
        file = frame.f_code.co_filename
        general = file.startswith(_GENERAL) or (
            file.startswith(_STANDARD) and not file.startswith(_PACKAGES)
        )
        skipped = bool(skip) and file.startswith(os.path.join(skip, ''))
        if not general and not skipped and os.path.isabs(file):
            name = os.path.join(*file.split(os.sep)[-3:])
            return f'{name}:{line} in {frame.f_code.co_name}'
    return ''
