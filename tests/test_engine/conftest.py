"""Fixtures for runs of the toy training in the test's own process."""

import mmengine.device.utils
import pytest


@pytest.fixture(autouse=True)
def _clean_device():
    """MMEngine's device is what it was, afterwards."""
    device = mmengine.device.utils.DEVICE
    yield
    mmengine.device.utils.DEVICE = device
