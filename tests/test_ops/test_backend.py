"""The operator table as mmcv sees it."""

import inspect
import re
from pathlib import Path
from types import ModuleType

import mmcv.ops
import pytest
import torch
from mmcv.version import __version__

from mmext.ops.backend import (
    OPS,
    fill_module,
    get_compiler_version,
    get_compiling_cuda_version,
)

BINDINGS = Path(mmcv.ops.__file__).parent / 'csrc' / 'pytorch' / 'pybind.cpp'
# Not an argument of the compiled functions, whose last ones have no default.
BINDING = re.compile(r'm\.def\(\s*"(\w+)",\s*&\w+,(.*?)\);', re.DOTALL)


@pytest.fixture
def module() -> ModuleType:
    module = ModuleType('mmcv._ext')
    fill_module(module)
    return module


def test_module_answers_for_operators_it_does_not_have(module):
    assert hasattr(module, 'three_nn_forward')
    remedy = f'--no-binary onedl-mmcv onedl-mmcv=={__version__}'
    message = rf"operator 'three_nn_forward' must .*{re.escape(remedy)}"
    with pytest.raises(RuntimeError, match=message):
        module.three_nn_forward(1, k=3)


@pytest.mark.parametrize('name', ['__wrapped__', '__path__', '_private'])
def test_module_answers_for_no_private_name(module, name):
    with pytest.raises(AttributeError, match=f'no attribute {name!r}'):
        getattr(module, name)


def test_operators_are_called_as_the_compiled_ones():
    """Names and order of the arguments, from mmcv's binding file."""
    if not BINDINGS.is_file():
        pytest.skip('this mmcv comes without its sources')
    bound = {
        name: re.findall(r'py::arg\("(\w+)"\)', rest)
        for name, rest in BINDING.findall(BINDINGS.read_text())
    }
    assert len(bound) > 100
    for name, op in OPS.items():
        parameters = inspect.signature(op).parameters.values()
        own = [
            item.name for item in parameters if item.kind != item.VAR_KEYWORD
        ]
        # What mmcv gives by keyword may be taken together.
        rest = len(own) < len(parameters)
        known = [one for one in bound[name] if not rest or one in own]
        assert own == known, name


def test_versions_are_what_mmcv_reports(module, monkeypatch):
    from mmcv.ops import info

    monkeypatch.setattr(info, 'ext_module', module)
    assert mmcv.ops.get_compiler_version() == get_compiler_version()
    assert 'mmext' in get_compiler_version()
    assert mmcv.ops.get_compiling_cuda_version() == (
        torch.version.cuda or 'not available'
    )
    assert get_compiling_cuda_version() == (
        mmcv.ops.get_compiling_cuda_version()
    )
