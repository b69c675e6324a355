"""``import mmext``: light, registers ``mmext::``, finds shipped configs."""

import subprocess
import sys
from pathlib import Path

import pytest

from mmext import config_path


def run_python(code: str, cwd: Path) -> str:
    """Run code in a new interpreter and give what it printed."""
    done = subprocess.run(
        [sys.executable, '-c', code],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# One after the other; what each must not have loaded.
LIGHT = """
import sys
from argparse import Namespace
from pathlib import Path

def loaded(*names):
    return {'torch', 'mmcv', 'mmdet', 'mmseg', *names} & set(sys.modules)

import mmext.ops
assert not loaded('cv2'), loaded('cv2')
import mmext.checks.config
assert not loaded(), loaded()
# Or the GPUs would be seen before they can be hidden.
from mmext.utils.cli import find_device
Path('a.py').write_text('custom_imports = dict(imports=["torch"])')
find_device(Namespace(device=None, cfg_options={}, config='a.py'))
assert not loaded(), loaded()
# What a process that reads label files loads.
import mmext.checks.labels.store
rules = 'mmext.checks.labels.rules'
assert not loaded('joblib', rules), loaded('joblib', rules)
import mmext.checks.labels.rules
from mmext.apis import plot_log
assert not loaded(), loaded()
import mmext.registry
assert not loaded() - {'torch'}, loaded()
"""


def test_import_loads_neither_torch_nor_a_host(tmp_path: Path):
    run_python(LIGHT, tmp_path)


def test_import_keeps_a_registration_that_is_already_there(tmp_path: Path):
    code = (
        'from mmengine.config.utils import MODULE2PACKAGE as names; '
        'names["mmext"] = "a.fork"; import mmext; print(names["mmext"])'
    )
    assert run_python(code, tmp_path) == 'a.fork'


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('_base_/default_runtim.py', r'default_runtime\.py'),
        ('no_such_method/a.py', 'holds nothing'),
        ('_base_', 'name must be a config'),
        ('', 'name must be a config'),
        ('../setup.py', 'name must be a config'),
    ],
)
def test_config_path_refuses_what_is_no_config(name: str, message: str):
    with pytest.raises(FileNotFoundError, match=message):
        config_path(name)
