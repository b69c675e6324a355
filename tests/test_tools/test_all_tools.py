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
