"""What tests need that rehearse a step."""

import pytest

from mmext.checks.device import is_available

needs_device = pytest.mark.skipif(
    not is_available(), reason='needs PyTorch 2.13'
)
