"""What tests need that rehearse a step."""

import pytest
import torch

needs_device = pytest.mark.skipif(
    not hasattr(
        torch.utils.backend_registration,
        '_setup_privateuseone_for_python_backend',
    ),
    reason='needs PyTorch 2.13',
)
