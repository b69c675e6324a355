"""The random number generators of a process, saved and restored."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def get_rng_state() -> dict[str, Any]:
    """State of Python's, numpy's and torch's global generators.

    Tensors and plain Python values only, so that it can be stored in a
    checkpoint that is read without running code. ``cuda``, the generator of
    the current CUDA device, is there once CUDA is in use.
    """
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    state = {
        'python': random.getstate(),
        'numpy': (
            str(kind),
            torch.from_numpy(keys.astype(np.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ),
        'torch': torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state['cuda'] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Set the generators to a state; ``cuda`` only where it is there."""
    version, internal, gauss = state['python']
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state['numpy']
    np.random.set_state(
        (kind, keys.numpy().astype(np.uint32), position, has_gauss, cached)
    )
    torch.set_rng_state(state['torch'].cpu())
    if 'cuda' in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['cuda'].cpu())
