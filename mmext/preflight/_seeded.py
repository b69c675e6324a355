"""Random numbers that are the same each time, and disturb nobody."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ['seeded']


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all sources of random numbers; put them back afterwards.

    Args:
        seed: In ``[0, 1 << 32)``.

    Examples:
        >>> with seeded(0):
        ...     first = torch.rand(())
        >>> with seeded(0):
        ...     bool(torch.rand(()) == first)
        True
    """
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
