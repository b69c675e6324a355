"""The tool: settings reach the files, errors have a code and a remedy."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / 'tools/make_shapes_dataset.py'
SMALL = ['--num-train', '2', '--num-val', '1', '--image-size', '32']


@pytest.fixture
def main(monkeypatch):
    """The tool's main(), which would keep its signal handler."""
    monkeypatch.setattr(signal, 'signal', lambda *_: None)
    return runpy.run_path(str(TOOL))['main']


def test_settings_reach_the_files(main, tmp_path: Path, capsys):
    out = tmp_path / 'set'
    code = main(
        [
            *('--out', str(out), '--num-train', '3', '--num-val', '2'),
            *('--image-size', '48', '32', '--seed', '7'),
            *('--min-objects', '2', '--max-objects', '3'),
            *('--empty-fraction', '0'),
        ]
    )
    assert code == 0
    content = json.loads((out / 'annotations/train.json').read_text())
    assert len(content['images']) == 3
    assert 6 <= len(content['annotations']) <= 9
    assert content['images'][0]['width'] == 48
    assert content['images'][0]['height'] == 32
    settings = json.loads((out / 'shapes_dataset.json').read_text())
    assert settings['seed'] == 7
    printed = capsys.readouterr().out
    assert f'data_root = {str(out)!r}' in printed
    assert 'val: 2 pictures' in printed


def test_one_number_is_a_square(main, tmp_path: Path):
    assert main(['--out', str(tmp_path / 'a'), *SMALL]) == 0
    content = json.loads((tmp_path / 'a/annotations/val.json').read_text())
    image = content['images'][0]
    assert (image['width'], image['height']) == (32, 32)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (['--image-size', '8'], 'image_size must be in [32, 8192], got 8'),
        (['--image-size', '40', '40', '40'], 'image_size must be W H or one'),
        (['--min-objects', '9'], 'max_objects must be in [9, 1000], got 6'),
        (['--empty-fraction', '2'], 'empty_fraction must be in [0, 1]'),
        (['--seed', '-3'], 'seed must be in [0, 4294967295], got -3'),
        (['--num-train', '-1'], 'num_train must be at least 0, got -1'),
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


def test_ctrl_c_has_its_code(main, tmp_path, capsys, monkeypatch):
    def stop(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setitem(main.__globals__, 'write_shapes_dataset', stop)
    assert main(['--out', str(tmp_path / 'a'), *SMALL]) == 130
    assert 'is as it was' in capsys.readouterr().err


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


@pytest.mark.xdist_group('processes')
@pytest.mark.parametrize(
    ('number', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_stopped_process_leaves_nothing(tmp_path: Path, number, code):
    arguments = ['--num-train', '100000', '--out', str(tmp_path / 'a')]
    process = subprocess.Popen(
        [sys.executable, TOOL, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob('.a.*/tree/img_dir/train/000002.jpg')):
        assert process.poll() is None, 'ended before it was stopped'
        assert time.monotonic() < deadline, 'draws nothing'
        time.sleep(0.02)
    os.kill(process.pid, number)
    assert process.wait(timeout=30) == code
    assert not any(tmp_path.iterdir())
