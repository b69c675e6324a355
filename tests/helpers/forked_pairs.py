"""Run many jobs on two real processes, which are the same for most.

One light process loads PyTorch and forks two ranks. They go from job to job,
each in a new process group, until one has an error; others are then forked
for the rest. Those that hang are killed.
"""

import importlib
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._dynamo  # Optimizers load it late: seconds in each process.
from torch import distributed as dist

WORLD = 2
HANG_SECONDS = 20.0
AT_ONCE = 16


class Report(NamedTuple):
    """What a rank tells of a job.

    Attributes:
        result: Picklable.
        ends: Whether the process ends with it, which lets the other one go
            on; as after an error that leaves a collective unfinished.
        failed: Whether no other job can be run by these processes.
    """

    result: Any
    ends: bool = False
    failed: bool = False


def run_jobs(
    function: Callable[[Any, int], Report], jobs: Sequence[Any], folder: Path
) -> list[list[Any]]:
    """Call a function with each job in two joined processes.

    Args:
        function: Of a job and the rank; found by its module and name.
        jobs: Picklable.
        folder: An empty one.

    Returns:
        The results of both ranks for each job; None from one that hung.
    """
    name = f'{function.__module__}:{function.__qualname__}'
    (folder / 'jobs').write_bytes(pickle.dumps((name, list(jobs))))
    root = Path(__file__).resolve().parents[2]
    known = filter(None, [os.environ.get('PYTHONPATH')])
    path = os.pathsep.join([str(root), str(root / 'tests'), *known])
    environ = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': path}
    output = folder / 'output'
    with output.open('w') as file:
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', __file__, str(folder)],
            env=environ,
            stdout=file,
            stderr=file,
        )
    assert done.returncode == 0, output.read_text()[-3000:]
    return [
        [_read(_file(folder, number, rank)) for rank in range(WORLD)]
        for number in range(len(jobs))
    ]


def _file(folder: Path, number: int, rank: int) -> Path:
    return folder / f'{number}-{rank}.pkl'


def _read(path: Path) -> Any:
    return _load(path).result if path.exists() else None


def _load(path: Path) -> Report:
    return Report(*pickle.loads(path.read_bytes()))


def _child(
    function: Callable[[Any, int], Report],
    jobs: Sequence[Any],
    numbers: Sequence[int],
    rank: int,
    folder: Path,
) -> None:
    """What a forked rank does; it never returns."""
    try:
        torch.set_num_threads(1)
        for number in numbers:
            dist.init_process_group(
                'gloo',
                f'file://{folder}/store{number}',
                rank=rank,
                world_size=WORLD,
                timeout=timedelta(seconds=HANG_SECONDS),
            )
            report = function(jobs[number], rank)
            part = folder / f'part{rank}'
            part.write_bytes(pickle.dumps(tuple(report)))
            part.rename(_file(folder, number, rank))
            if report.ends:
                break
            other = _file(folder, number, 1 - rank)
            while not other.exists():
                time.sleep(0.001)
            if report.failed or _load(other).failed:
                break
            dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _run_until_error(
    function: Callable[[Any, int], Report],
    jobs: Sequence[Any],
    numbers: Sequence[int],
    folder: Path,
) -> int:
    """How many jobs were run, at least one."""
    pids = []
    for rank in range(WORLD):
        pid = os.fork()
        if pid == 0:
            _child(function, jobs, numbers, rank, folder)
        pids.append(pid)
    end = time.monotonic() + HANG_SECONDS + len(numbers)
    while pids:
        pids = [p for p in pids if os.waitpid(p, os.WNOHANG)[0] == 0]
        if time.monotonic() > end:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    done = [n for n in numbers if any(folder.glob(f'{n}-*.pkl'))]
    return max(len(done), 1)


def _main(folder: Path) -> None:
    name, jobs = pickle.loads((folder / 'jobs').read_bytes())
    module, _, attribute = name.partition(':')
    function = getattr(importlib.import_module(module), attribute)
    start = 0
    while start < len(jobs):
        numbers = range(start, min(start + AT_ONCE, len(jobs)))
        start += _run_until_error(function, jobs, numbers, folder)


if __name__ == '__main__':
    _main(Path(sys.argv[1]))
