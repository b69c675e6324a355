"""The tool as users start it: exit codes, messages, kill and resume."""

import subprocess
import sys

import pytest
from helpers import toy_training as toy
from helpers.toy_ranks import (
    TOOLS,
    kill_and_resume,
    load_tool,
    process_environ,
    start_ranks,
)

pytestmark = pytest.mark.xdist_group('processes')


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    toy.quicken(monkeypatch)


def command(*args):
    """Run the tool in a process of its own."""
    return subprocess.run(
        [sys.executable, str(TOOLS / 'train.py'), *map(str, args)],
        capture_output=True,
        text=True,
        env=process_environ(),
        timeout=300,
    )


def test_wrong_input_is_one_line(tmp_path, capsys):
    main = load_tool('train').main
    path = toy.write(tmp_path / 'cfg.py', toy.config())
    for args, message in (
        (['none.py'], 'config must be an existing file, got none.py'),
        ([path, '--device', 'gpu'], "device must be 'auto', 'cpu', 'cuda'"),
        ([path, '--resume', 'a.pth'], "existing checkpoint, got 'a.pth'"),
        ([path, '--auto-scale-lr'], 'needs auto_scale_lr.base_batch_size'),
        ([path, '--launcher', 'slurm'], 'must set SLURM_PROCID'),
    ):
        with pytest.raises(SystemExit) as info:
            main(args)
        assert info.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert 'Traceback' not in error
        assert error.count('\n') == 1


@pytest.mark.slow
def test_as_a_process_with_a_damaged_sample(tmp_path):
    path = toy.write(
        tmp_path / 'cfg.py',
        toy.config(train_dataloader=toy.loader(broken=5, num_workers=1)),
    )
    done = command(path, '--work-dir', tmp_path / 'w', '--device', 'cpu')
    assert done.returncode == 1
    assert "sample 5 of ToyDataset, image '5.jpg'" in done.stderr
    assert 'does not exist; put it back' in done.stderr.strip()[-400:]


def test_kill_9_and_resume(tmp_path):
    def start(args):
        return start_ranks(args, 1, tmp_path / 'out').wait()[0]

    kill_and_resume(tmp_path, 1, start)


@pytest.mark.slow
def test_kill_9_and_resume_as_processes(tmp_path):
    kill_and_resume(tmp_path, 1, lambda args: command(*args).returncode)
