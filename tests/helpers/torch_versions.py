"""Skip a test that needs a newer PyTorch than the one that is there."""

import pytest
import torch


def needs_torch(*version: int, why: str) -> pytest.MarkDecorator:
    """Mark that skips a test before a version of PyTorch."""
    needed = '.'.join(map(str, version))
    return pytest.mark.skipif(
        torch.__version__ < version,
        reason=f'needs PyTorch {needed} or newer: {why}',
    )


counts_bytes = needs_torch(2, 2, why='weak references to storages')
