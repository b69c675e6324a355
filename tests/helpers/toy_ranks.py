"""Start the processes of a run as a launcher would, but in a second.

They are forked from the test, which has loaded everything already; what
torchrun adds is tested with torchrun itself.
"""

import importlib.util
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import mmcv.ops  # noqa: F401
import torch

# An optimizer loads it, which takes seconds in each process anew, as does
# what the tools load late.
import torch._dynamo
from managed_kinds import managed_kinds
from torch import distributed as dist

import mmext.apis.test
import mmext.apis.train  # noqa: F401
from mmext.engine import init_process_group, read_launcher_env

TOOLS = Path(__file__).resolve().parents[2] / 'tools'

__all__ = ['Ranks', 'free_port', 'load_tool', 'run_on_ranks', 'start_ranks']


def load_tool(name):
    """Module of a tool, such as ``train``."""
    path = TOOLS / f'{name}.py'
    spec = importlib.util.spec_from_file_location(f'tool_{name}', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
        # A new process has none of what the test's runners have left.
        for kind in managed_kinds():
            kind._instance_dict.clear()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = function() or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


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

    def wait(self, seconds=90, end_others=False):
        """Exit codes, a negative one for a signal.

        Args:
            seconds: After which the test fails.
            end_others: Do as a launcher does: when one fails, kill the rest.
        """
        end = time.monotonic() + seconds
        while None in self.codes:
            self.poll()
            if end_others and any(self.codes):
                self.signal(signal.SIGKILL)
            if time.monotonic() > end:
                self.signal(signal.SIGKILL)
                raise AssertionError(f'hangs: {self.output()[-3000:]}')
            time.sleep(0.005)
        return self.codes


def _fork(function, world_size, out, own_group=False):
    port = free_port()
    pids = []
    for rank in range(world_size):
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


def start_ranks(argv, world_size, out, tool='train', own_group=False):
    """Start a tool in several processes, or in one without a launcher.

    Args:
        argv: Arguments of the tool, without the launcher.
        world_size: Number of processes.
        out: Prefix of the files for their output.
        tool: Its name.
        own_group: Make each process the head of a group.
    """
    main = load_tool(tool).main
    argv = [str(item) for item in argv]
    if world_size > 1:
        argv += ['--launcher', 'pytorch']
    return _fork(lambda: main(argv), world_size, out, own_group)


def run_on_ranks(function, world_size, out):
    """Call a function in several processes that are joined by gloo.

    Args:
        function: Called without arguments.
        world_size: Number of processes.
        out: Prefix of the files for their output.
    """

    def joined():
        env = read_launcher_env('pytorch', os.environ)
        init_process_group(env, torch.device('cpu'), dict(timeout=60))
        function()
        dist.barrier()
        dist.destroy_process_group()

    return _fork(joined, world_size, out)
