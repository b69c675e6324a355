"""Fixtures for runs of the toy training in the test's own process."""

import mmengine.device.utils
import pytest
from helpers import toy_training as toy


@pytest.fixture(autouse=True)
def _quick_and_clean(monkeypatch):
    """Fast configs; MMEngine's device is what it was, afterwards."""
    toy.quicken(monkeypatch)
    device = mmengine.device.utils.DEVICE
    yield
    mmengine.device.utils.DEVICE = device
