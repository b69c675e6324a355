"""What tests need that rehearse a step, or a part of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmext.checks.device import is_available
from mmext.checks.device.recorder import Recorder
from mmext.checks.device.tensor import watched_device

needs_device = pytest.mark.skipif(
    not is_available(), reason='needs PyTorch 2.13'
)


def device_waits(function: Callable, *values: Any) -> list[str]:
    """Where the host waits for the device in a function, or copies to it.

    The function gets the values on the device: tensors, modules, which are
    moved themselves, samples, and lists of them.
    """
    recorder = Recorder(nn.Module())
    with watched_device(recorder) as device:
        moved = [_moved(value, device) for value in values]
        with recorder.watching():
            function(*moved)
    assert recorder.failure is None
    return [str(p) for p in (recorder.reads + recorder.uploads).elements()]


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_moved(item, device) for item in value)
    if isinstance(value, Tensor):
        leaf = value.detach().to(device)
        return leaf.requires_grad_(value.requires_grad)
    return value.to(device)
