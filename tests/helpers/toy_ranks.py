"""Start the processes of a run as a launcher would, but in a second.

They are forked from the test, which has loaded everything already; what
torchrun adds is tested with torchrun itself.
"""

import faulthandler
import importlib
import importlib.util
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

# mmcv.ops, torch._dynamo, which an optimizer loads, and what the tools load
# late take seconds in each forked process anew.
import mmcv.ops  # noqa: F401
import torch
import torch._dynamo
from joblib.externals.loky import reusable_executor
from torch import distributed as dist

import mmext.apis.runs
import mmext.checks.preflight  # noqa: F401
from helpers import toy_training as toy
from helpers.managed_kinds import managed_kinds
from mmext.engine import init_process_group
from mmext.utils.launcher_env import read_launcher_env

TESTS = Path(__file__).resolve().parents[1]
TOOLS = TESTS.parent / 'tools'


def load_tool(name):
    """Module of a tool, such as ``train``."""
    path = TOOLS / f'{name}.py'
    spec = importlib.util.spec_from_file_location(f'tool_{name}', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(printed: str) -> list[list[str]]:
    """The rows of the printed table."""
    return [
        [cell.strip() for cell in line.strip('│').split('│')]
        for line in printed.splitlines()
        if line.startswith('│')
    ]


def load_segmentation():
    """Load what a segmentor's run loads, before it is forked: 5 s each."""
    for name in ('datasets', 'engine', 'evaluation', 'visualization'):
        importlib.import_module(f'mmseg.{name}')
    for name in ('mmseg.models', 'mmdet.datasets', 'mmext.datasets'):
        importlib.import_module(name)


def process_environ(**more):
    """Environment of a new process that finds helpers and this checkout."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    return {**os.environ, 'PYTHONPATH': path, 'OMP_NUM_THREADS': '1', **more}


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as server:
        server.bind(('127.0.0.1', 0))
        return server.getsockname()[1]


def _child(function: Callable[[], None], environ: dict, out: Path) -> None:
    """What a forked process does; it never returns."""
    code = 1
    try:
        file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in (1, 2):
            os.dup2(file, number)
        # pytest's replacements write elsewhere.
        sys.stdout = os.fdopen(1, 'w', buffering=1)
        sys.stderr = os.fdopen(2, 'w', buffering=1)
        os.environ.update(environ)
        # What `wait` asks of a process that hangs.
        faulthandler.register(signal.SIGUSR2, file=2)
        # A new process has none of what the test's runners have left.
        for kind in managed_kinds():
            kind._instance_dict.clear()
        # Its pool of processes has no threads here, and would never answer.
        reusable_executor._executor = None
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = function() or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_of(output: str) -> str:
    """What was written last, and of its thread's calls the innermost."""
    before, mark, calls = output.rpartition('Current thread')
    return f'{before[-1500:]}{mark}{calls[:2500]}'


class Ranks:
    """Processes of a run.

    Args:
        pids: One per rank.
        out: Prefix of the files with their output.
    """

    def __init__(self, pids, out):
        self.pids, self.out = pids, out
        self.codes = [None] * len(pids)

    def output(self, rank=0):
        """What a rank has written."""
        return Path(f'{self.out}.{rank}').read_text()

    def signal(self, signum, rank=None):
        """Send a signal to one rank, or to all."""
        for index, pid in enumerate(self.pids):
            if self.codes[index] is None and rank in (None, index):
                os.kill(pid, signum)

    def wait_for(self, condition, seconds=60):
        """Wait until a condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            self.poll()
            assert None in self.codes, f'ended: {self.output()}'
            assert time.monotonic() < end, f'too slow: {self.output()}'
            time.sleep(0.005)

    def poll(self):
        """Collect those that have ended."""
        for index, pid in enumerate(self.pids):
            if self.codes[index] is None:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self.codes[index] = os.waitstatus_to_exitcode(status)

    def wait(self, seconds=240, end_others=False):
        """Exit codes, a negative one for a signal."""
        end = time.monotonic() + seconds
        while None in self.codes:
            self.poll()
            if end_others and any(self.codes):
                self.signal(signal.SIGKILL)
            if time.monotonic() > end:
                # Each process writes where its threads are.
                self.signal(signal.SIGUSR2)
                time.sleep(1)
                self.signal(signal.SIGKILL)
                raise AssertionError(
                    '\n'.join(
                        f'rank {rank} hangs: {_end_of(self.output(rank))}'
                        for rank, code in enumerate(self.codes)
                        if code is None
                    )
                )
            time.sleep(0.005)
        return self.codes


def _fork(function, world_size, out, own_group=False, only=None):
    port = free_port()
    pids = []
    for rank in range(world_size) if only is None else only:
        environ = dict(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(world_size),
            LOCAL_WORLD_SIZE=str(world_size),
            MASTER_ADDR='127.0.0.1',
            MASTER_PORT=str(port),
            OMP_NUM_THREADS='1',
            MKL_NUM_THREADS='1',
        )
        file = Path(f'{out}.{rank}')
        file.write_text('')
        pid = os.fork()
        if pid == 0:
            if own_group:
                os.setpgid(0, 0)
            _child(function, environ, file)
        pids.append(pid)
    return Ranks(pids, out)


def start_ranks(
    argv, world_size, out, tool='train', own_group=False, only=None
):
    """Start a tool in several processes, or in one without a launcher.

    Those of ``only`` arrive, by default all.
    """
    main = load_tool(tool).main
    argv = [str(item) for item in argv]
    if world_size > 1:
        argv += ['--launcher', 'pytorch']
        if '--device' not in argv:  # there may be one GPU for all of them
            argv += ['--device', 'cpu']
    return _fork(lambda: main(argv), world_size, out, own_group, only)


def run_on_ranks(function, world_size, out):
    """Call a function in several processes that are joined by gloo."""

    def joined():
        env = read_launcher_env('pytorch', os.environ)
        init_process_group(env, torch.device('cpu'), dict(timeout=180))
        function()
        dist.barrier()
        dist.destroy_process_group()

    return _fork(joined, world_size, out)


def results_of_ranks(function, folder):
    """What a function of the rank gives on two ranks, by ``'value'``.

    Where it ends with an error, its class and ``'text'``, by ``'error'``.
    """

    def run():
        rank = dist.get_rank()
        try:
            result = {'value': function(rank)}
        except Exception as error:
            result = {'error': type(error).__name__, 'text': str(error)}
        partial = folder / f'{rank}.partial'
        partial.write_text(json.dumps(result))
        partial.replace(folder / f'{rank}.json')
        end = time.monotonic() + 60
        other = folder / f'{1 - rank}.json'
        while not other.exists() and time.monotonic() < end:
            time.sleep(0.01)
        # After an error, the group may be in the middle of a step of either
        # rank: a barrier, with which ranks end, would fail.
        results = [result, json.loads(other.read_text())]
        if any('error' in result for result in results):
            os._exit(0)

    ranks = run_on_ranks(run, 2, folder / 'out')
    assert ranks.wait() == [0, 0], ranks.output(0) + ranks.output(1)
    return [
        json.loads((folder / f'{rank}.json').read_text()) for rank in (0, 1)
    ]


_HOOKS = dict(
    checkpoint=dict(type='CheckpointHook', interval=2, by_epoch=False),
    logger=dict(type='LoggerHook', interval=1),
)
_MODEL = dict(type='ToyModel', noise=0.3)


def kill_and_resume(
    tmp_path, world_size, start, num_kills=2, config=toy.config, **changes
):
    """Kill before a random step, resume; until done; compare with no kill.

    ``changes`` are of the config, such as another model.

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
            config(
                **{'model': _MODEL, **changes},
                custom_hooks=hooks,
                default_hooks=_HOOKS,
            ),
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
