"""Several processes on a CPU, by the script that users start."""

import os
import signal
import subprocess
import sys
import time

import pytest
from helpers import toy_training as toy
from helpers.toy_ranks import (
    TOOLS,
    load_tool,
    process_environ,
)
from torch.distributed.elastic.multiprocessing import (
    ProcessFailure,
    SignalException,
)
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

pytestmark = pytest.mark.xdist_group('processes')


def script(name, *args, **environ):
    """Start a script; returns the process."""
    return subprocess.Popen(
        ['bash', str(TOOLS / name), *map(str, args)],
        env=process_environ(**{'PYTHON': sys.executable, **environ}),
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
    assert words[0].endswith('_torchrun.py')
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


@pytest.mark.slow
def test_nproc_of_the_tool_is_the_same_launch(tmp_path):
    config = toy.write(tmp_path / 'cfg.py', toy.config())
    done = subprocess.run(
        [
            *(sys.executable, '-m', 'mmext', 'train', '--nproc', '2'),
            *('--work-dir', str(tmp_path / 'w'), '--', config),
        ],
        env=process_environ(),
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert '2 process(es) over gloo' in done.stdout
    assert 'Warning' not in done.stdout + done.stderr


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


def slow_config(folder):
    cfg = toy.traced(
        folder / 'trace',
        toy.config(model=dict(type='ToyModel', noise=0.3, seconds=0.4)),
    )
    return toy.write(folder / 'cfg.py', cfg)


@pytest.mark.slow
@pytest.mark.parametrize(
    'signum',
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive),
    ],
)
def test_signal_to_the_launcher_and_resume(tmp_path, signum):
    path = slow_config(tmp_path)
    args = ['dist_train.sh', path, 2, '--work-dir', tmp_path / 'w', '--resume']
    process = script(*args)
    while not (tmp_path / 'trace.0').exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signum)
    code, output = finish(process)
    assert code == 128 + signum
    assert f'{signum.name}: stopped after iteration' in output
    assert f'launcher: {signum.name}: all processes have ended' in output
    assert 'Traceback' not in output
    code, output = finish(script(*args))
    assert code == 0, output
    assert 'stopped_iter_' in output.split('Resuming from')[1].splitlines()[0]
    steps = [
        line['iter']
        for line in toy.steps(toy.read_trace(tmp_path / 'trace.0'))
    ]
    assert steps == list(range(1, 10))


@pytest.mark.parametrize(
    ('raised', 'code', 'text'),
    [
        (SignalException('', signal.SIGTERM), 143, 'SIGTERM: all processes'),
        (KeyboardInterrupt(), 130, 'SIGINT: ended before the start'),
        (-9, 137, 'rank 1 (pid 7) was the first to fail, it was killed by'),
        (3, 3, 'rank 1 (pid 7) was the first to fail, it ended with exit'),
        (143, 143, 'SIGTERM: all processes have ended'),
    ],
)
def test_exit_code_of_the_launcher(monkeypatch, capsys, raised, code, text):
    """The same with processes: the slow tests below and above."""
    if isinstance(raised, int):
        failure = ProcessFailure(1, 7, raised, 'none')
        raised = ChildFailedError('train.py', {1: failure})

    def run(args):
        raise raised

    launcher = load_tool('_torchrun')
    monkeypatch.setattr(launcher, 'run', run)
    assert launcher.main(['train.py']) == code
    assert text in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_process_ends_the_run(tmp_path):
    """Its signal is the exit code, and the others do not wait."""
    hook = dict(
        type='StrikeHook',
        signal='SIGKILL',
        at=3,
        rank=1,
        once=str(tmp_path / 'struck'),
    )
    path = toy.write(tmp_path / 'cfg.py', toy.config(custom_hooks=[hook]))
    code, output = finish(
        script('dist_train.sh', path, 2, '--work-dir', tmp_path / 'w')
    )
    seconds = time.time() - (tmp_path / 'struck').stat().st_mtime
    assert code == 137
    assert seconds < 10
    assert 'rank 1 (pid ' in output
    assert 'was killed by SIGKILL, as by kill -9' in output


@pytest.mark.slow
@pytest.mark.parametrize('cause', ['gradients', 'rank 1'])
def test_one_cause_is_one_message(tmp_path, cause):
    """By the launcher; by processes alone: ``test_watch.py``."""
    model = dict(type='UnusedModel')
    text = '2 parameters got no gradient: never used in forward'
    if cause == 'rank 1':
        mark = str(tmp_path / 'mark')
        model = dict(type='FaultyModel', kind='raise', mark=mark)
        text = 'ZeroDivisionError: the planted fault'
    cfg = toy.config(model=model)
    cfg['custom_imports']['imports'].append('helpers.rank_faults')
    path = toy.write(tmp_path / 'cfg.py', cfg)
    code, output = finish(
        script('dist_train.sh', path, 2, '--work-dir', tmp_path / 'w')
    )
    assert code == 1
    blocks = [line for line in output.splitlines() if text in line]
    by_others = [line for line in blocks if line.startswith('rank 0: ')]
    assert len(blocks) - len(by_others) == 1
    assert len(by_others) <= 1
    assert output.count('Traceback') == (cause == 'rank 1')
    failed = 1 if cause == 'rank 1' else 0
    assert f'launcher: rank {failed} (pid ' in output.splitlines()[-1]
