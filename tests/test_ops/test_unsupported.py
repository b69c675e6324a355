"""The error of an operator that the backend does not have."""

import re
import sys

import pytest
import torch
from mmcv.ops import contour_expand
from mmcv.version import __version__

from mmext.ops.unsupported import unsupported_op


def test_rejects_the_call():
    op = unsupported_op('knn_forward')
    assert op.__name__ == 'knn_forward'
    for args, kwargs in ([], {}), ([1, 2], {'k': 3}):
        with pytest.raises(RuntimeError, match=r"operator 'knn_forward' must"):
            op(*args, **kwargs)


def test_message_says_how_to_compile():
    remedy = f'--no-binary onedl-mmcv onedl-mmcv=={__version__}'
    with pytest.raises(RuntimeError, match=re.escape(remedy)):
        unsupported_op('carafe_forward')()


def test_is_what_mmcv_calls(ours, monkeypatch):
    """Through mmcv's own API."""
    module = sys.modules['mmcv.ops.contour_expand']
    monkeypatch.setattr(module, 'ext_module', ours)
    kernels = torch.zeros(2, 4, 4), torch.zeros(4, 4)
    with pytest.raises(RuntimeError, match="operator 'contour_expand'"):
        contour_expand(*kernels, min_kernel_area=1, kernel_num=2)
