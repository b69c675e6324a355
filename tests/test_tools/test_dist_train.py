"""Several processes on a CPU, by the script that users start."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import toy_training as toy
from toy_ranks import TOOLS, free_port

HELPERS = os.path.dirname(toy.__file__)
spec = importlib.util.spec_from_file_location(
    'train_checks', Path(__file__).with_name('test_train.py')
)
train_checks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(train_checks)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    toy.quicken(monkeypatch)


def script(name, *args, **environ):
    """Start a script; returns the process."""
    environ = {
        **os.environ,
        'PYTHONPATH': HELPERS,
        'PYTHON': sys.executable,
        'OMP_NUM_THREADS': '1',
        **environ,
    }
    return subprocess.Popen(
        ['bash', str(TOOLS / name), *map(str, args)],
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process):
    """Exit code and output."""
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def shown(name, *args, **environ):
    """The command that a script would start, by ``echo`` as interpreter."""
    code, output = finish(script(name, *args, PYTHON='echo', **environ))
    assert code == 0, output
    return output.split()


def test_command_for_one_machine():
    words = shown('dist_train.sh', 'my config.py', 2, '--resume', '--amp')
    assert words[:2] == ['-m', 'torch.distributed.run']
    text = ' '.join(words)
    assert '--nnodes 1 --nproc-per-node 2 --standalone' in text
    assert text.endswith(
        'train.py my config.py --launcher pytorch --resume --amp'
    )


def test_command_for_a_given_port_and_for_several_machines():
    text = ' '.join(shown('dist_train.sh', 'c.py', 2, PORT='1234'))
    assert '--node-rank 0 --master-addr 127.0.0.1 --master-port 1234' in text
    text = ' '.join(
        shown(
            'dist_train.sh',
            'c.py',
            8,
            NNODES='2',
            NODE_RANK='1',
            MASTER_ADDR='node0',
        )
    )
    assert '--nnodes 2 --nproc-per-node 8 --node-rank 1' in text
    assert '--master-addr node0 --master-port 29500' in text


def test_command_of_the_test():
    text = ' '.join(shown('dist_test.sh', 'c.py', 'a.pth', 2, '--out', 'b'))
    assert text.endswith('test.py c.py a.pth --launcher pytorch --out b')


@pytest.mark.parametrize(
    'args',
    [[], ['c.py'], ['c.py', 'two'], ['c.py', '0'], ['c.py', '--resume']],
)
def test_rejects_number_of_processes(args):
    code, output = finish(script('dist_train.sh', *args))
    assert code == 2
    assert 'argument 2 must be a number of processes' in output
    assert 'usage: bash tools/dist_train.sh CONFIG NPROC' in output


def test_slurm_command(tmp_path):
    srun = tmp_path / 'srun'
    srun.write_text('#!/bin/sh\necho "$@"\n')
    srun.chmod(0o755)
    path = f'{tmp_path}:{os.environ["PATH"]}'
    code, output = finish(
        script(
            'slurm_train.sh',
            'part',
            'job',
            'c.py',
            'work',
            '--resume',
            PATH=path,
            GPUS='4',
            SRUN_ARGS='--mem 8G --quiet',
            PYTHON='python',
        )
    )
    assert code == 0
    assert (
        '--partition=part --job-name=job --gres=gpu:4 --ntasks=4 '
        '--ntasks-per-node=4 --cpus-per-task=5 --kill-on-bad-exit=1 '
        '--mem 8G --quiet python -u'
    ) in output
    assert output.strip().endswith(
        'train.py c.py --work-dir work --launcher slurm --resume'
    )
    code, output = finish(script('slurm_train.sh', 'part'))
    assert code == 2
    assert 'usage: bash tools/slurm_train.sh PARTITION' in output


@pytest.mark.parametrize(
    'num_kills', [1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_kill_9_and_resume(tmp_path, num_kills):
    """Two processes, one of which is killed at a random step."""

    def start(args):
        config, *more = args
        code, output = finish(script('dist_train.sh', config, 2, *more))
        Path(tmp_path, 'output').write_text(output)
        return code

    try:
        train_checks.kill_and_resume(tmp_path, 2, start, num_kills)
    finally:
        output = Path(tmp_path, 'output').read_text()
        print(output)
    assert 'over gloo' in output
    assert 'Resuming from' in output


def slow_config(folder):
    cfg = toy.traced(
        folder / 'trace',
        toy.config(model=dict(type='ToyModel', noise=0.3, seconds=0.1)),
    )
    return toy.write(folder / 'cfg.py', cfg)


@pytest.mark.slow
@pytest.mark.parametrize('signum', [signal.SIGTERM, signal.SIGINT])
def test_signal_to_the_launcher_and_resume(tmp_path, signum):
    path = slow_config(tmp_path)
    args = ['dist_train.sh', path, 2, '--work-dir', tmp_path / 'w', '--resume']
    process = script(*args)
    while not (tmp_path / 'trace.0').exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signum)
    code, output = finish(process)
    assert code != 0
    assert f'{signum.name}: stopped after iteration' in output
    code, output = finish(script(*args))
    assert code == 0, output
    assert 'stopped_iter_' in output.split('Resuming from')[1].splitlines()[0]
    steps = [
        line['iter']
        for line in toy.steps(toy.read_trace(tmp_path / 'trace.0'))
    ]
    assert steps == list(range(1, 10))


@pytest.mark.slow
def test_failing_process_ends_all(tmp_path):
    path = toy.write(
        tmp_path / 'cfg.py', toy.config(train_dataloader=toy.loader(broken=5))
    )
    code, output = finish(
        script(
            'dist_train.sh',
            path,
            2,
            '--work-dir',
            tmp_path / 'w',
            PORT=str(free_port()),
        )
    )
    assert code != 0
    assert "image '5.jpg'" in output
