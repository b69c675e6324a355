"""Fixtures of the operator tests: which ``mmcv._ext`` mmcv's API calls."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import mmcv.ops  # noqa: F401  (loads the modules that hold ext_module)
import pytest
import torch

from mmext.ops import active_backend, choice
from mmext.ops.finder import fill_module

CALLERS = (
    'deform_conv',
    'focal_loss',
    'modulated_deform_conv',
    'multi_scale_deform_attn',
    'nms',
    'roi_align',
)


@contextlib.contextmanager
def calling(ext: ModuleType) -> Iterator[None]:
    """Let mmcv's Python API call the operators of a module."""
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLERS:
            # By its full name: `mmcv.ops.nms` is the function.
            caller = sys.modules[f'mmcv.ops.{name}']
            patch.setattr(caller, 'ext_module', ext)
        yield


@pytest.fixture(scope='session')
def ours() -> ModuleType:
    """A module with the backend's operators."""
    module = ModuleType('mmcv._ext')
    fill_module(module)
    return module


@pytest.fixture(autouse=True)
def _call_ours(ours: ModuleType) -> Iterator[None]:
    """Test the backend also where mmcv is compiled."""
    with calling(ours):
        yield


BACKENDS = ['numba', 'pytorch']
if choice._import_error('torchvision') is None:
    BACKENDS.append('torchvision')


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch) -> str:
    """Each, where there is a choice on CPUs."""
    monkeypatch.setenv('MMEXT_OPS', request.param)
    return request.param


@pytest.fixture
def compiled_run() -> Callable:
    """Call a function while mmcv's API uses its compiled operators."""
    if active_backend() != 'compiled':
        pytest.skip('needs an mmcv with compiled operators')
    from mmcv import _ext

    def run(function: Callable, *args: object) -> object:
        with calling(_ext):
            return function(*args)

    return run


@pytest.fixture(scope='session')
def oracle() -> Callable[[str], dict]:
    """A recorded call of compiled mmcv by its name."""
    path = Path(__file__).parents[1] / 'oracles' / 'mmcv_ops.pt'
    calls = torch.load(path, weights_only=True)
    return lambda name: calls[name]
