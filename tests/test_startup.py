"""What ``mmext.pth`` starts, on packages made here in place of the real ones.

Each program runs in a Python of its own, as the finder is for a whole process.
"""

import subprocess
import sys
from pathlib import Path

import pytest

START = 'import sys; import _mmext_startup\n'


@pytest.fixture
def run(checkout: Path, tmp_path: Path):
    """Run a program with an mmengine and an mmext; returns what it printed."""

    def run(program: str, mmext: str = '', archive: bool = False) -> str:
        sources = {'mmengine/__init__': 'a = 1', 'mmengine/part': 'b = 2'}
        for name, text in {**sources, 'mmext': mmext, 'other': ''}.items():
            path = tmp_path / f'{name}.py'
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        where = tmp_path
        if archive:
            where = tmp_path / 'all.zip'
            pack = [sys.executable, '-m', 'zipfile', '-c', where]
            subprocess.run([*pack, *tmp_path.iterdir()], check=True)
        start = f'import sys; sys.path[:0] = {[str(where), str(checkout)]}; '
        done = subprocess.run(
            [sys.executable, '-I', '-S', '-c', f'{start}{START}{program}'],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    return run


@pytest.mark.parametrize('archive', [False, True])
def test_mmext_follows_mmengine_and_nothing_else(run, archive):
    program = """
import other
print('mmext' in sys.modules)
import mmengine.part
print('mmext' in sys.modules, type(mmengine.__loader__).__module__)
print(other.__loader__ is mmengine.__loader__)
"""
    shown = run(program, archive=archive).split()
    loader = 'zipimport' if archive else '_frozen_importlib_external'
    # The modules of an archive share one loader, which stays as it was.
    assert shown == ['False', 'True', loader, str(archive)]


def test_what_only_looks_imports_nothing(run):
    program = """
import importlib.util
spec = importlib.util.find_spec('mmengine')
print(spec.origin, spec.loader.get_source('mmengine'))
print('mmext' in sys.modules)
import mmengine
print('mmext' in sys.modules)
importlib.reload(mmengine)
print(mmengine.__spec__.loader is mmengine.__loader__)
"""
    *rest, spec = reversed(run(program).splitlines())
    assert rest == ['True', 'True', 'False']
    assert spec.endswith('__init__.py a = 1')


def test_mmext_first_is_imported_once(run):
    program = 'import mmext'
    mmext = 'print("begun"); import mmengine; print("done")'
    assert run(program, mmext).split() == ['begun', 'done']


def test_mmext_that_fails_is_a_warning_and_mmengine_works(run):
    program = """
import mmengine
print(mmengine.a)
import mmext
"""
    shown = run(program, mmext='raise OSError("no such driver")')
    assert 'RuntimeWarning: mmext is installed and cannot be imported' in shown
    assert '(OSError: no such driver)' in shown
    assert '1\n' in shown
    # Who asks for it gets the error itself.
    assert shown.rstrip().endswith('OSError: no such driver')


def test_without_mmengine_the_error_is_the_usual_one(run, tmp_path):
    program = """
import importlib.util, pathlib, shutil
shutil.rmtree(sys.path[0] + '/mmengine')
print(importlib.util.find_spec('mmengine'))
import mmengine
"""
    shown = run(program).splitlines()
    assert shown[0] == 'None'
    assert shown[-1] == "ModuleNotFoundError: No module named 'mmengine'"
