"""The tool as users start it: exit codes, messages, kill and resume."""

import os
import random
import subprocess
import sys

import pytest
import toy_training as toy
from toy_ranks import TOOLS, load_tool, start_ranks

HELPERS = os.path.dirname(toy.__file__)
HOOKS = dict(
    checkpoint=dict(type='CheckpointHook', interval=2, by_epoch=False),
    logger=dict(type='LoggerHook', interval=1),
)
MODEL = dict(type='ToyModel', noise=0.3)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    toy.quicken(monkeypatch)


def command(*args):
    """Run the tool in a process of its own."""
    environ = {**os.environ, 'PYTHONPATH': HELPERS}
    return subprocess.run(
        [sys.executable, str(TOOLS / 'train.py'), *map(str, args)],
        capture_output=True,
        text=True,
        env=environ,
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


def test_as_a_process_with_a_damaged_sample(tmp_path):
    path = toy.write(
        tmp_path / 'cfg.py',
        toy.config(train_dataloader=toy.loader(broken=5, num_workers=1)),
    )
    done = command(path, '--work-dir', tmp_path / 'w', '--device', 'cpu')
    assert done.returncode == 1
    assert "sample 5 of ToyDataset, image '5.jpg'" in done.stderr
    assert 'does not exist; put it back' in done.stderr.strip()[-400:]


def kill_and_resume(tmp_path, world_size, start, num_kills=2):
    """Kill before a random step, resume; until done; compare with no kill.

    A process that dies is not one that is just saving with the others: such
    a checkpoint lacks its random numbers. Every second step is saved.
    """
    draw = random.Random(str(tmp_path))
    steps = draw.sample(range(4, 18 // world_size, 2), num_kills)
    folder = tmp_path / 'run'
    for name in ('plain', 'run'):
        (tmp_path / name).mkdir()
        hooks = [dict(type='EMAHook', momentum=0.5)]
        if name == 'run':
            hooks += [
                dict(
                    type='StrikeHook',
                    signal='SIGKILL',
                    at=step,
                    stage='before_train_iter',
                    rank=draw.randrange(world_size),
                    once=str(folder / f'struck{step}'),
                )
                for step in steps
            ]
        cfg = toy.traced(
            tmp_path / name / 'trace',
            toy.config(model=MODEL, custom_hooks=hooks, default_hooks=HOOKS),
        )
        toy.write(tmp_path / name / 'cfg.py', cfg)
    args = [folder / 'cfg.py', '--resume', 'auto', '--work-dir', folder / 'w']
    strikes = 0
    while start(args) != 0:
        strikes += 1
        assert len(list(folder.glob('struck*'))) == strikes
    plain = tmp_path / 'plain'
    ranks = start_ranks(
        [plain / 'cfg.py', '--work-dir', plain / 'w'],
        world_size,
        plain / 'out',
    )
    assert not any(ranks.wait()), ranks.output()
    for rank in range(world_size):
        expected = toy.read_trace(plain / f'trace.{rank}')
        trace = toy.read_trace(folder / f'trace.{rank}')
        # A step after the last checkpoint was done again, with the same
        # outcome, by those that live on.
        last = {line['iter']: line for line in toy.steps(trace)}
        assert list(last.values()) == toy.steps(expected)
        assert all(line in toy.steps(expected) for line in toy.steps(trace))
        assert trace[-1] == expected[-1]


def test_kill_9_and_resume(tmp_path):
    def start(args):
        return start_ranks(args, 1, tmp_path / 'out').wait()[0]

    kill_and_resume(tmp_path, 1, start)


@pytest.mark.slow
def test_kill_9_and_resume_as_processes(tmp_path):
    kill_and_resume(tmp_path, 1, lambda args: command(*args).returncode)
