"""The tools that draw data: settings reach the files, errors are named."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.toy_ranks import TOOLS, load_tool

COUNTS = ['--num-train', '2', '--num-val', '1', '--image-size']
SMALL = {'shapes': [*COUNTS, '32'], 'scenes': [*COUNTS, '32', '24']}


@pytest.fixture(autouse=True)
def _keeps_no_signal_handler(monkeypatch):
    monkeypatch.setattr(signal, 'signal', lambda *_: None)


def make(kind: str, out: Path, *options: str) -> int:
    """Exit code of the tool."""
    argv = ['--out', str(out), *SMALL[kind], *options]
    return load_tool(f'make_{kind}_dataset').main(argv)


def test_settings_of_shapes(tmp_path: Path, capsys):
    out = tmp_path / 'set'
    options = ['--num-train', '3', '--image-size', '48', '32', '--seed', '7']
    options += ['--min-objects', '2', '--max-objects', '3']
    assert make('shapes', out, *options, '--empty-fraction', '0') == 0
    content = json.loads((out / 'annotations/train.json').read_text())
    assert len(content['images']) == 3
    assert 6 <= len(content['annotations']) <= 9
    assert content['images'][0]['width'] == 48
    assert content['images'][0]['height'] == 32
    settings = json.loads((out / 'shapes_dataset.json').read_text())
    assert settings['seed'] == 7
    printed = capsys.readouterr().out
    assert f'data_root = {str(out)!r}' in printed
    assert 'val: 1 pictures' in printed
    # One number is the side of a square.
    assert make('shapes', tmp_path / 'square') == 0
    content = json.loads(
        (tmp_path / 'square/annotations/val.json').read_text()
    )
    image = content['images'][0]
    assert (image['width'], image['height']) == (32, 32)


def test_settings_of_scenes(tmp_path: Path, capsys):
    out = tmp_path / 'set'
    options = ['--seed', '7', '--noise', '0.1', '--max-objects', '2']
    assert make('scenes', out, *options, '--invalid-fraction', '0') == 0
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
    ('kind', 'options', 'message'),
    [
        ('shapes', '--image-size 8', 'image_size must be in [32, 8192], got'),
        ('shapes', '--image-size 40 40 40', 'image_size must be W H or one'),
        ('shapes', '--min-objects 9', 'must be in [9, 1000], got 6'),
        ('scenes', '--image-size 8 8', 'image_size must be in [16, 4096]'),
        ('scenes', '--num-val -1', 'num_val must be at least 0, got -1'),
    ],
)
def test_bad_settings_are_named(kind, options, message, tmp_path, capsys):
    assert make(kind, tmp_path / 'a', *options.split()) == 1
    assert message in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize('kind', SMALL)
def test_existing_files_are_kept_without_overwrite(kind, tmp_path, capsys):
    assert make(kind, tmp_path / 'a') == 0
    assert make(kind, tmp_path / 'a') == 1
    assert '--overwrite' in capsys.readouterr().err
    assert make(kind, tmp_path / 'a', '--overwrite') == 0


@pytest.mark.xdist_group('processes')
@pytest.mark.parametrize('kind', SMALL)
def test_as_a_process_without_torch(kind, tmp_path: Path):
    """Starts quickly: nothing of torch or mmdet is loaded."""
    tool = TOOLS / f'make_{kind}_dataset.py'
    argv = ['-X', 'importtime', tool, *SMALL[kind], '--out', 'a']
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    modules = {line.split('|')[-1].strip() for line in done.stderr.split('\n')}
    assert 'numpy' in modules
    assert not modules & {'torch', 'mmcv', 'mmdet'}


@pytest.mark.xdist_group('processes')
@pytest.mark.parametrize(
    ('number', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_stopped_process_leaves_nothing(tmp_path: Path, number, code):
    tool = TOOLS / 'make_shapes_dataset.py'
    argv = ['--num-train', '100000', '--out', str(tmp_path / 'a')]
    process = subprocess.Popen(
        [sys.executable, tool, *argv],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob('.a.*/tree/img_dir/train/000002.jpg')):
            assert process.poll() is None, 'ended before it was stopped'
            assert time.monotonic() < deadline, 'draws nothing'
            time.sleep(0.02)
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == code
    assert ('is as it was' in errors) == (number == signal.SIGINT)
    assert not any(tmp_path.iterdir())
