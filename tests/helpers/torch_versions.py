"""Skip a test that needs a newer PyTorch than the one that is there."""

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch


def needs_torch(*version: int, why: str) -> pytest.MarkDecorator:
    """Mark that skips a test before a version of PyTorch."""
    needed = '.'.join(map(str, version))
    return pytest.mark.skipif(
        torch.__version__ < version,
        reason=f'needs PyTorch {needed} or newer: {why}',
    )


def cpu_autocast(dtype: torch.dtype) -> AbstractContextManager:
    """Autocast on the CPU; none for float32. Skips a test of float16."""
    if dtype == torch.float32:
        return nullcontext()
    if dtype == torch.float16 and torch.__version__ < (2, 4):
        pytest.skip('needs PyTorch 2.4 or newer: float16 on CPUs')
    return torch.autocast('cpu', dtype)


half_on_cpu = needs_torch(2, 4, why='float16 on CPUs')
counts_bytes = needs_torch(2, 2, why='weak references to storages')
