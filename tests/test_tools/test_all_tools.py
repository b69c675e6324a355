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
# Prints the help of the tools, which load no host for it, then of the others.
HELP = """
import runpy, sys
from pathlib import Path
number, *tools = sys.argv[1:]
for index, tool in enumerate(tools):
    sys.argv = [tool, '--help']
    sys.path.insert(0, str(Path(tool).parent))
    try:
        runpy.run_path(tool, run_name='__main__')
    except SystemExit as end:
        assert end.code == 0, tool
    sys.path.pop(0)
    heavy = {'torch', 'mmcv', 'mmdet', 'mmseg'} & set(sys.modules)
    assert not heavy or index >= int(number), f'{tool} loads {sorted(heavy)}'
"""
# _torchrun is PyTorch's launcher, with the arguments of that.
FEW = [
    path for path in SCRIPTS if path.parent == TOOLS and path.stem[0] != '_'
]
MANY = [*FEW, *(path for path in SCRIPTS if path not in FEW)]


@pytest.mark.parametrize(
    'scripts', [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=len
)
def test_help_loads_no_torch(scripts):
    done = subprocess.run(
        [sys.executable, '-c', HELP, str(len(FEW)), *map(str, scripts)],
        env={**os.environ, 'COLUMNS': '100'},
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    names = re.findall(r'^usage: (\S+)', done.stdout, re.MULTILINE)
    assert sorted(names) == sorted(path.name for path in scripts)
    assert len(FEW) >= 11
    # No line of the hosts, which they print while they are imported.
    assert done.stdout.startswith('usage: ')
    assert done.stderr == ''


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
def test_one_command_trains_with_workers(tmp_path):
    toy.write(tmp_path / 'cfg.py', toy.config())
    done = mmext(
        *('train', tmp_path / 'cfg.py', '--work-dir', tmp_path / 'w'),
        *('--cfg-options', 'train_dataloader.num_workers=1'),
        'env_cfg.mp_cfg.mp_start_method=spawn',
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / 'w/epoch_3.pth').is_file()
