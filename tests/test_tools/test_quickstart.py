"""tools/quickstart.sh from the data to the pictures, with little training.

The environment is the running one, put in the place of ``.venv``; how that is
made is tested in test_env_sh.py.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COPIED = (
    'configs',
    'constraints.txt',
    'pyproject.toml',
    'setup.cfg',
    'setup.py',
    'tools',
)


@pytest.fixture
def ready_checkout(checkout: Path, tmp_path: Path) -> Path:
    """A checkout whose environment counts as finished."""
    root = tmp_path / 'checkout'
    root.mkdir()
    for name in COPIED:
        copy = shutil.copytree if (checkout / name).is_dir() else shutil.copy
        copy(checkout / name, root / name)
    (root / 'mmext' / '.mim').mkdir(parents=True)
    shutil.copy(checkout / 'mmext' / 'version.py', root / 'mmext')
    (root / 'mmext' / '.mim' / 'configs').mkdir()
    (root / 'mmext' / '.mim' / 'model-index.yml').touch()
    python = root / '.venv' / 'bin' / 'python'
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    mark = '. tools/_env.sh; printf "finished %s" "$(env_key)" >"$MARK"'
    subprocess.run(['bash', '-c', mark], cwd=root, check=True)
    return root


def quickstart(root: Path, **env: str) -> subprocess.CompletedProcess:
    """Run the script as a user does."""
    return subprocess.run(
        ['bash', str(root / 'tools' / 'quickstart.sh')],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_runs_to_the_end_twice(ready_checkout: Path):
    for _ in range(2):
        done = quickstart(ready_checkout, EPOCHS='1', IMAGES='16')
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r'mAP@50 0\.\d+, mAP 0\.\d+ on 200', done.stdout)
        assert re.search(r'epoch 1/1, step 1/1: loss \d', done.stdout)
        assert 'validation: mAP@50' in done.stdout
        work = ready_checkout / 'work_dirs' / 'quickstart'
        for name in (
            'epoch_1.pth',
            'curves.png',
            'predictions/contact_sheet.png',
        ):
            assert (work / name).stat().st_size > 0
            assert f'work_dirs/quickstart/{name}' in done.stdout


def test_failed_training_names_log_and_exit_code(ready_checkout: Path):
    (ready_checkout / 'tools' / 'dist_train.sh').write_text(
        'echo "no such GPU"; exit 7\n'
    )
    (ready_checkout / 'tools' / 'make_shapes_dataset.py').write_text('')
    done = quickstart(ready_checkout)
    assert done.returncode == 1
    assert 'no such GPU' in done.stderr
    assert 'exit code 7' in done.stderr
    assert 'logs/train.log' in done.stderr


@pytest.mark.parametrize('number', ['0', 'many', '-1'])
def test_rejects_what_is_no_number(ready_checkout: Path, number: str):
    done = quickstart(ready_checkout, EPOCHS=number)
    assert done.returncode == 1
    assert f"got '{number}'" in done.stderr
