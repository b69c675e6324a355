"""The command line of the curves: exit code first."""

import importlib.util
import json
import subprocess
import sys

import pytest


@pytest.fixture
def tool(checkout):
    spec = importlib.util.spec_from_file_location(
        'tool_plot_log', checkout / 'tools' / 'plot_log.py'
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def work_dir(tmp_path):
    folder = tmp_path / 'work' / '20261120_100000' / 'vis_data'
    folder.mkdir(parents=True)
    lines = [
        json.dumps({'loss': 3.0 / step, 'lr': 0.1, 'iter': step})
        for step in (10, 20)
    ]
    (folder / 'scalars.json').write_text('\n'.join([*lines, '{"lo']))
    return tmp_path / 'work'


def test_draws_and_tells_what_it_left_out(checkout, work_dir, tmp_path):
    out = tmp_path / 'a.png'
    done = subprocess.run(
        [
            sys.executable,
            checkout / 'tools' / 'plot_log.py',
            work_dir,
            '--out',
            out,
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert out.is_file()
    assert str(out) in done.stdout
    assert 'half written' in done.stderr


def test_picture_goes_to_the_work_dir(tool, work_dir):
    assert tool.main([str(work_dir)]) == 0
    assert (work_dir / 'curves.png').is_file()


def test_fails_with_a_remedy(tool, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        tool.main([str(tmp_path)])
    assert caught.value.code == 2
    assert 'give the --work-dir of a training' in capsys.readouterr().err
