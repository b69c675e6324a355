"""When ``mmcv._ext`` is ours, each in a fresh process; and what is in it."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import mmcv.ops
import pytest
import torch
from mmcv.version import __version__

from mmext.ops import active_backend
from mmext.ops.finder import (
    OPS,
    ExtFinder,
    ExtLoader,
    get_compiler_version,
    get_compiling_cuda_version,
    install_ext_finder,
)

ROOT = Path(__file__).resolve().parents[2]
BINDINGS = Path(mmcv.ops.__file__).parent / 'csrc' / 'pytorch' / 'pybind.cpp'
# Not an argument of the compiled functions, whose last ones have no default.
BINDING = re.compile(r'm\.def\(\s*"(\w+)",\s*&\w+,(.*?)\);', re.DOTALL)


def python(code: str, *, path: Path | None = None) -> str:
    """Output of a script, run where only ``path`` has a ``mmcv``."""
    entries = [str(path)] if path else []
    entries += [str(ROOT), os.environ.get('PYTHONPATH', '')]
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', code],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(entries)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def make_mmcv(folder: Path, ext: str | None) -> Path:
    """An mmcv package of nothing but its extension module, if any."""
    package = folder / 'mmcv'
    package.mkdir()
    (package / '__init__.py').touch()
    (package / 'version.py').write_text("__version__ = '2.9'\n")
    if ext is not None:
        (package / '_ext.py').write_text(ext)
    return folder


@pytest.mark.slow
def test_missing_module_is_ours(tmp_path):
    code = (
        'import mmext, mmcv._ext as ext\n'
        'print(ext.__spec__.origin, ext.nms.__module__, '
        "hasattr(ext, 'three_nn_forward'))"
    )
    path = make_mmcv(tmp_path, None)
    assert python(code, path=path) == 'mmext.ops mmext.ops.nms True'


def test_compiled_module_wins(tmp_path):
    code = (
        'import mmext, mmcv._ext\n'
        'from mmext.ops import active_backend\n'
        'print(mmcv._ext.who, active_backend())'
    )
    path = make_mmcv(tmp_path, "who = 'theirs'\n")
    assert python(code, path=path) == 'theirs compiled'


def test_broken_compiled_module_is_not_replaced(tmp_path):
    code = (
        'import mmext\n'
        'try:\n'
        '    import mmcv._ext\n'
        'except ImportError as error:\n'
        '    print(error)'
    )
    broken = "raise ImportError('undefined symbol: _ZN2at')\n"
    path = make_mmcv(tmp_path, broken)
    assert python(code, path=path) == 'undefined symbol: _ZN2at'


def test_spec_is_found_without_loading_torch(tmp_path):
    code = (
        'import sys, mmext\n'
        'from importlib.util import find_spec\n'
        'from mmext.ops import active_backend\n'
        "print(find_spec('mmcv._ext').name, active_backend(), "
        "'torch' in sys.modules)"
    )
    path = make_mmcv(tmp_path, None)
    assert python(code, path=path) == 'mmcv._ext mmext False'


@pytest.mark.slow
def test_hosts_register_all_their_modules():
    """On the installed mmcv, whichever it is; and what reports on it works."""
    code = (
        'import mmext, mmdet.utils, mmseg.utils\n'
        'from mmdet.registry import MODELS as DETECTION\n'
        'from mmseg.registry import MODELS as SEGMENTATION\n'
        'from mmcv.utils.ext_loader import check_ops_exist\n'
        'for host in (mmdet, mmseg):\n'
        '    host.utils.register_all_modules(init_default_scope=False)\n'
        'from mmcv.utils import collect_env\n'
        'env = collect_env()\n'
        'mmdet.utils.collect_env(), mmseg.utils.collect_env()\n'
        'print(len(DETECTION) > 200, len(SEGMENTATION) > 80, '
        "check_ops_exist(), env['MMCV Compiler'])"
    )
    *facts, compiler = python(code).splitlines()[-1].split(maxsplit=3)
    assert facts == ['True'] * 3
    assert compiler == mmcv.ops.get_compiler_version()


@pytest.mark.slow
def test_masks_that_were_imported_earlier_can_be_cropped():
    """As isort has it: mmdet before mmext."""
    code = (
        'import numpy as np\n'
        'try:\n'
        '    from mmdet.structures.mask import BitmapMasks\n'
        'except ImportError:  # of an mmdet that needs the operators\n'
        '    import mmext\n'
        '    from mmdet.structures.mask import BitmapMasks\n'
        'import mmext\n'
        'masks = BitmapMasks(np.eye(4, dtype=np.uint8)[None], 4, 4)\n'
        'boxes = np.array([[0, 0, 2, 2]], np.float32)\n'
        'cropped = masks.crop_and_resize(boxes, (2, 2), np.array([0]))\n'
        'print(cropped.masks.astype(int).tolist())'
    )
    assert python(code) == '[[[1, 0], [0, 1]]]'


def test_finder_answers_for_one_name_only():
    ext_finder = ExtFinder()
    spec = ext_finder.find_spec('mmcv._ext', None)
    assert isinstance(spec.loader, ExtLoader)
    for name in ('mmcv', 'mmcv._ext.nms', '_ext', 'mmcv.ops', 'mmdet'):
        assert ext_finder.find_spec(name, None) is None


def test_install_is_idempotent_and_last(monkeypatch):
    others = [f for f in sys.meta_path if not isinstance(f, ExtFinder)]
    monkeypatch.setattr(sys, 'meta_path', others.copy())
    install_ext_finder()
    install_ext_finder()
    assert sys.meta_path[:-1] == others
    assert isinstance(sys.meta_path[-1], ExtFinder)


def test_rejects_a_missing_mmcv(monkeypatch):
    monkeypatch.delitem(sys.modules, 'mmcv._ext', raising=False)
    monkeypatch.setitem(sys.modules, 'mmcv', None)
    with pytest.raises(ModuleNotFoundError, match='mmcv'):
        active_backend()


def test_module_answers_for_operators_it_does_not_have(ours):
    assert hasattr(ours, 'three_nn_forward')
    remedy = f'mmcv=={__version__}` (needs a C++ compiler'
    message = rf"operator 'three_nn_forward' must .*{re.escape(remedy)}"
    with pytest.raises(RuntimeError, match=message):
        ours.three_nn_forward(1, k=3)


@pytest.mark.parametrize('name', ['__wrapped__', '__path__', '_private'])
def test_module_answers_for_no_private_name(ours, name):
    with pytest.raises(AttributeError, match=f'no attribute {name!r}'):
        getattr(ours, name)


def test_operators_are_called_as_the_compiled_ones(ours):
    """Names and order of the arguments, from mmcv's binding file."""
    if not BINDINGS.is_file():
        pytest.skip('this mmcv comes without its sources')
    bound = {
        name: re.findall(r'py::arg\("(\w+)"\)', rest)
        for name, rest in BINDING.findall(BINDINGS.read_text())
    }
    assert len(bound) > 100
    for name in sum(OPS.values(), ()):
        op = getattr(ours, name)
        parameters = inspect.signature(op).parameters.values()
        own = [
            item.name for item in parameters if item.kind != item.VAR_KEYWORD
        ]
        # What mmcv gives by keyword may be taken together.
        rest = len(own) < len(parameters)
        known = [one for one in bound[name] if not rest or one in own]
        assert own == known, name


def test_versions_are_what_mmcv_reports(ours, monkeypatch):
    from mmcv.ops import info

    monkeypatch.setattr(info, 'ext_module', ours)
    assert mmcv.ops.get_compiler_version() == get_compiler_version()
    assert 'mmext' in get_compiler_version()
    assert mmcv.ops.get_compiling_cuda_version() == (
        torch.version.cuda or 'not available'
    )
    assert get_compiling_cuda_version() == (
        mmcv.ops.get_compiling_cuda_version()
    )
