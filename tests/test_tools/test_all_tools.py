"""Every tool and benchmark starts as a script, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / 'tools'
SCRIPTS = [
    path
    for path in sorted(TOOLS.rglob('*.py'))
    if '__main__' in path.read_text()
]
# Prints the help of the tools, which load no host for it.
HELP = """
import runpy, sys
for tool in sys.argv[1:]:
    sys.argv = [tool, '--help']
    try:
        runpy.run_path(tool, run_name='__main__')
    except SystemExit as end:
        assert end.code == 0, tool
    heavy = {'torch', 'mmcv', 'mmdet', 'mmseg'} & set(sys.modules)
    assert not heavy, f'{tool} --help loads {sorted(heavy)}'
"""


def test_help_loads_no_torch():
    # _torchrun is PyTorch's launcher, with the arguments of that.
    tools = sorted(map(str, TOOLS.glob('[!_]*.py')))
    done = subprocess.run(
        [sys.executable, '-c', HELP, *tools],
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('usage: ') == len(tools) >= 11


@pytest.mark.slow
@pytest.mark.parametrize('script', SCRIPTS, ids=lambda path: path.stem)
def test_prints_its_help(script):
    done = subprocess.run(
        [sys.executable, script, '--help'],
        env={**os.environ, 'COLUMNS': '100'},
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    # No line of the hosts, which they print while they are imported.
    assert done.stdout.startswith(f'usage: {script.name}')
    assert done.stderr == ''
