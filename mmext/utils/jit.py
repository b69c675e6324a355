"""What all kernels that numba compiles share: settings and threads.

A kernel is compiled at its first call with arrays of a type and kept on disk.
It works on the rows ``[first, last)`` of what it is given, each of which
writes to elements of its own: calls on other rows may run in other threads,
and the result does not depend on how many there are.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from numba import njit

# Without 'nnan' and 'ninf': comparisons with NaN have to be false.
FAST = frozenset({'arcp', 'contract', 'nsz', 'reassoc'})


def kernel(
    *, fastmath: frozenset[str] | bool = False, inline: bool = False
) -> Callable:
    """Decorator that has a function compiled at its first call.

    ``fastmath``: What the compiler may do to sums and products, see numba;
    by default nothing. ``inline``: Copy it into the kernels that call it;
    handing arrays to a small function takes longer than what it does.
    """
    options = {
        'nogil': True,
        'error_model': 'numpy',
        'fastmath': set(fastmath) if fastmath else False,
        'inline': 'always' if inline else 'never',
    }

    def compiled(function: Callable) -> Callable:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:
            # No folder to keep it in: each process compiles it again.
            return njit(**options)(function)

    return compiled


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of a process; those of its parent are not in a fork."""
    return ThreadPoolExecutor(threads, 'mmext-kernels')


def run_rows(
    run: Callable, arrays: Sequence[np.ndarray], rows: int, *, least: int = 1
) -> list:
    """Run a kernel on all rows, in as many threads as PyTorch has.

    ``run``: Called with the arrays, and the first row and the one behind the
    last; ``least``: Rows that are worth a thread. Returns what it returns.
    """
    threads = min(torch.get_num_threads(), -(-rows // least))
    if threads <= 1:
        return [run(*arrays, 0, rows)]
    edges = [rows * part // threads for part in range(threads + 1)]
    pool = _pool(os.getpid(), threads)
    parts = [
        pool.submit(run, *arrays, first, last)
        for first, last in pairwise(edges)
    ]
    return [part.result() for part in parts]
