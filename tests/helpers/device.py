"""What tests need that rehearse a step."""

import pytest
import torch

# What PyTorch 2.13 has, and older ones lack.
SETUP = '_setup_privateuseone_for_python_backend'
needs_device = pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, SETUP),
    reason='needs PyTorch 2.13',
)
