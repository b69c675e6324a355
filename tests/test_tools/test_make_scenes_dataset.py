"""The tool: settings reach the files, errors have a code and a remedy."""

import json
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TOOL = Path(__file__).resolve().parents[2] / 'tools/make_scenes_dataset.py'
SMALL = ['--num-train', '2', '--num-val', '1', '--image-size', '32', '24']


@pytest.fixture
def main(monkeypatch):
    """The tool's main(), which would keep its signal handler."""
    monkeypatch.setattr(signal, 'signal', lambda *_: None)
    return runpy.run_path(str(TOOL))['main']


def test_settings_reach_the_files(main, tmp_path: Path, capsys):
    out = tmp_path / 'set'
    more = ['--seed', '7', '--noise', '0.1', '--max-objects', '2']
    more += ['--invalid-fraction', '0']
    assert main(['--out', str(out), *SMALL, *more]) == 0
    depth = np.load(out / 'train' / 'depth' / '1.npy')
    assert depth.shape == (24, 32, 1)
    assert depth.all()
    settings = json.loads((out / 'scenes_dataset.json').read_text())
    wanted = {'seed': 7, 'noise': 0.1, 'max_objects': 2}
    assert {key: settings[key] for key in wanted} == wanted
    printed = capsys.readouterr().out
    assert f'data_root = {str(out)!r}' in printed
    assert 'train: 2 scenes' in printed


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (['--image-size', '8', '8'], 'image_size must be in [16, 4096]'),
        (['--noise', '2'], 'noise must be in [0, 1], got 2.0'),
        (['--num-val', '-1'], 'num_val must be at least 0, got -1'),
    ],
)
def test_bad_settings_are_named(main, tmp_path, capsys, options, message):
    assert main(['--out', str(tmp_path / 'a'), *SMALL, *options]) == 1
    assert message in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_existing_files_are_kept_without_overwrite(main, tmp_path, capsys):
    arguments = ['--out', str(tmp_path / 'a'), *SMALL]
    assert main(arguments) == 0
    assert main(arguments) == 1
    assert '--overwrite' in capsys.readouterr().err
    assert main([*arguments, '--overwrite']) == 0


@pytest.mark.xdist_group('processes')
def test_as_a_process_without_torch(tmp_path: Path):
    """Starts quickly: nothing of torch or mmdet is loaded."""
    done = subprocess.run(
        [sys.executable, '-X', 'importtime', TOOL, *SMALL, '--out', 'a'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    modules = {line.split('|')[-1].strip() for line in done.stderr.split('\n')}
    assert 'numpy' in modules
    assert not modules & {'torch', 'mmcv', 'mmdet'}
