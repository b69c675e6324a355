"""Every tool and benchmark starts as a script, in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import toy_training as toy
from helpers.toy_ranks import process_environ

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


def mmext(*args, **environ):
    """Run ``python -m mmext``."""
    return subprocess.run(
        [sys.executable, '-m', 'mmext', *map(str, args)],
        env=process_environ(**environ),
        text=True,
        capture_output=True,
        timeout=300,
    )


def test_one_command_lists_the_tools():
    done = mmext('--help', PYTHONPROFILEIMPORTTIME='1')
    assert done.returncode == 0
    assert not re.search(r'\| +(torch|mmdet|mmseg)\n', done.stderr)
    for tool in TOOLS.glob('[!_]*.py'):
        title = tool.read_text()[3:].partition('\n')[0]
        assert re.search(
            rf'^  {tool.stem} +{re.escape(title)}$', done.stdout, re.MULTILINE
        )


@pytest.mark.parametrize(
    ('args', 'code', 'message'),
    [
        (
            ['trian'],
            2,
            'python -m mmext: error: TOOL must be one of convert_codetr, ',
        ),
        (['plot-log', 'no'], 2, 'python -m mmext plot_log: error: work_dir '),
        (['train'], 2, 'python -m mmext train: error: the following '),
    ],
)
def test_one_command_says_what_is_wrong(args, code, message):
    done = mmext(*args)
    assert done.returncode == code
    assert done.stderr.startswith(message)
    assert done.stderr.count('\n') == 1


@pytest.mark.slow
@pytest.mark.parametrize('method', ['fork', 'spawn'])
def test_one_command_trains_with_workers(tmp_path, method):
    toy.write(tmp_path / 'cfg.py', toy.config())
    done = mmext(
        *('train', tmp_path / 'cfg.py', '--work-dir', tmp_path / 'w'),
        *('--cfg-options', 'train_dataloader.num_workers=1'),
        f'env_cfg.mp_cfg.mp_start_method={method}',
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / 'w/epoch_3.pth').is_file()


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
