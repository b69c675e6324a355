"""What the README shows runs, and what it names is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.config import Config

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / 'README.md').read_text()
BLOCKS = re.findall(r'```(\w*)\n(.*?)```', TEXT, re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == 'python']
CONFIGS = [code for code in PYTHON if code.startswith('_base_')]
PROGRAMS = [code for code in PYTHON if not code.startswith('_base_')]
SHELL = [code for language, code in BLOCKS if language == 'bash']
# The folders and files of the root that a path in the text can start with.
PATH = re.compile(
    r'(?<![\w/.])((?:configs|mmext|tests|tools|\.ci)/[\w./*-]*[\w/*]'
    r'|(?:setup\.cfg|constraints\.txt|CHANGELOG\.md|LICENSE))'
)


def test_every_block_says_its_language():
    assert {language for language, _ in BLOCKS} <= {'python', 'bash', 'text'}


@pytest.mark.parametrize('code', CONFIGS)
def test_config_loads(code: str, tmp_path: Path):
    path = tmp_path / 'config.py'
    path.write_text(code)
    assert Config.fromfile(path).model.type.startswith('mmext.')


@pytest.mark.parametrize('code', PROGRAMS)
def test_program_runs(code: str, tmp_path: Path):
    """In a process of its own: it may register components."""
    done = subprocess.run(
        [sys.executable, '-c', code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_paths_are_there():
    paths = sorted(set(PATH.findall(TEXT)))
    assert len(paths) > 10
    missing = [path for path in paths if not list(ROOT.glob(path))]
    assert not missing


@pytest.mark.parametrize('code', SHELL)
def test_commands_have_files_and_flags_that_exist(code: str):
    known = ROOT / 'tests' / 'api_surface.json'
    for command in code.replace('\\\n', ' ').splitlines():
        words = command.split('#')[0].split()
        for word in words:
            if word.startswith(('tools/', 'configs/', 'tests/')):
                assert (ROOT / word).exists(), f'{word} in: {command}'
            if word.startswith('--') and 'tools/' in command:
                flag = f'{word.split("=")[0]}'
                assert flag in known.read_text(), f'{flag} in: {command}'
