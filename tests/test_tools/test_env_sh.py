"""tools/_env.sh: what counts as a finished environment, and how it fails.

Nothing is installed: the tests call the functions on a small copy of a
checkout.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

INPUTS = (
    'constraints.txt',
    'pyproject.toml',
    'setup.cfg',
    'setup.py',
    'mmext/version.py',
    'tools/_env.sh',
    'tools/run_tests.sh',
)


@pytest.fixture
def small_checkout(checkout: Path, tmp_path: Path) -> Path:
    """A checkout with a space in its name and only what the script reads."""
    root = tmp_path / 'a checkout'
    for name in INPUTS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkout / name, root / name)
    return root


@pytest.fixture
def finished(small_checkout: Path) -> Path:
    """The checkout with what a finished environment leaves behind."""
    (small_checkout / '.venv' / 'bin').mkdir(parents=True)
    (small_checkout / '.venv' / 'bin' / 'python').symlink_to(sys.executable)
    mim = small_checkout / 'mmext' / '.mim'
    (mim / 'configs').mkdir(parents=True)
    (mim / 'model-index.yml').touch()
    call(small_checkout, 'printf "finished %s" "$(env_key)" >"$MARK"')
    return small_checkout


def call(root: Path, code: str, **env: str) -> subprocess.CompletedProcess:
    """Run bash code with the functions of the script, in the checkout."""
    return subprocess.run(
        ['bash', '-c', f'set -euo pipefail; . tools/_env.sh; {code}'],
        cwd=root,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def is_ready(root: Path, **env: str) -> bool:
    """Whether the script takes the environment for a finished one."""
    return call(root, 'env_is_ready', **env).returncode == 0


@pytest.mark.parametrize(
    ('name', 'content'),
    [
        ('.venv/mmext-env.txt', 'unfinished\n'),
        ('.venv/mmext-env.txt', ''),
        ('constraints.txt', '# changed'),
        ('setup.cfg', '# changed'),
        ('mmext/version.py', '# changed'),
        ('.venv/bin/python', None),
        ('mmext/.mim/model-index.yml', None),
    ],
)
def test_what_makes_it_anew(finished: Path, name: str, content: str | None):
    assert is_ready(finished)
    (finished / name).unlink()
    if content is not None:
        (finished / name).write_text(content)
    assert not is_ready(finished)


def test_other_settings_or_another_place_make_it_anew(finished: Path):
    assert not is_ready(finished, PYTHON=sys.executable)
    assert not is_ready(finished, CONSTRAINTS='')
    moved = finished.rename(finished.with_name('moved'))
    assert not is_ready(moved)


def test_finds_the_python_it_is_told(small_checkout: Path):
    printed = call(small_checkout, 'find_python', PYTHON=sys.executable)
    base = Path(printed.stdout.strip())
    assert base.samefile(sys._base_executable)


def test_no_python_says_what_to_install(small_checkout: Path):
    done = subprocess.run(
        ['bash', 'tools/run_tests.sh'],
        cwd=small_checkout,
        env={**os.environ, 'PYTHON': 'no-such-python'},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert 'no Python 3.10 to 3.13' in done.stderr
    assert 'remedy: install one' in done.stderr
    assert not (small_checkout / '.venv').exists()


def test_environment_of_somebody_else_is_left_alone(small_checkout: Path):
    theirs = small_checkout / '.venv' / 'theirs.txt'
    theirs.parent.mkdir()
    theirs.touch()
    done = call(small_checkout, 'use_env')
    assert done.returncode == 1
    assert 'was not made by this script' in done.stderr
    assert theirs.exists()


def test_failed_command_shows_the_end_of_its_log(small_checkout: Path):
    done = call(
        small_checkout,
        'step Cooking; logged soup "buy salt" sh -c "echo no salt; exit 3"',
    )
    assert done.returncode == 1
    assert 'no salt' in done.stderr
    assert 'FAILED in step: Cooking' in done.stderr
    assert 'remedy: buy salt' in done.stderr
    log = small_checkout / 'work_dirs' / 'logs' / 'soup.log'
    assert log.read_text() == 'no salt\n'


def test_outside_a_checkout_says_so(small_checkout: Path):
    (small_checkout / 'setup.cfg').unlink()
    done = call(small_checkout, 'use_env')
    assert done.returncode == 1
    assert 'is not a source checkout' in done.stderr
