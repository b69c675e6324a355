"""What PyTorch frees on a CPU stays with the process.

A block of more than 32 MiB, glibc gives back to the system when it is freed,
and takes new pages, which the system fills with zeros one after the other,
for the next. Of CO-DINO's training step at 800 x 1333 that was a fifth.
"""

import ctypes
import os
import platform
from collections.abc import Mapping

# The user's own settings of glibc, or another allocator.
_SETTINGS = (
    'MALLOC_MMAP_MAX_',
    'MALLOC_MMAP_THRESHOLD_',
    'MALLOC_TOP_PAD_',
    'MALLOC_TRIM_THRESHOLD_',
)
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_NEVER = -1
# Bytes that the heap grows by, at least.
_GROWTH = 64 << 20


def keep_freed_memory(environ: Mapping[str, str] | None = None) -> bool:
    """Let this process keep the memory that is freed in it.

    It stays free for what is allocated next, also by PyTorch, and goes back
    to the system when the process ends. This holds for processes that are
    forked afterwards, too.

    Args:
        environ: Environment variables, those of this process by default. With
            settings of glibc's allocator among them (such as
            ``MALLOC_MMAP_MAX_=65536``, its default, or ``GLIBC_TUNABLES``
            that name ``glibc.malloc``), or an allocator in ``LD_PRELOAD``,
            nothing is changed.

    Returns:
        Whether it will be kept; False without glibc, too.

    Source:
        mallopt(3) of Linux: ``M_MMAP_MAX``, ``M_TRIM_THRESHOLD`` and
        ``M_TOP_PAD``.
    """
    environ = os.environ if environ is None else environ
    if (
        platform.libc_ver()[0] != 'glibc'
        or any(name in environ for name in _SETTINGS)
        or 'glibc.malloc' in environ.get('GLIBC_TUNABLES', '')
        or 'malloc' in environ.get('LD_PRELOAD', '')
    ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    done = [
        mallopt(parameter, value)
        for parameter, value in (
            (_M_MMAP_MAX, 0),
            (_M_TRIM_THRESHOLD, _NEVER),
            (_M_TOP_PAD, _GROWTH),
        )
    ]
    return all(done)
