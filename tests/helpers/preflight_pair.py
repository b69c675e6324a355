"""Run many models on two real processes, which are the same for most.

One light process loads PyTorch and forks two ranks. They go from model to
model, each in a new process group, until one has an error; others are then
forked for the rest. Those that hang are killed.
"""

import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch

# Optimizers load it late, which takes seconds in each process anew.
import torch._dynamo
from preflight_nets import Spec, batch_of, build_net
from torch import distributed as dist

from mmext.preflight import SyncSettings
from mmext.preflight.proof.rank_run import RankOutcome, RankResult, run_rank

__all__ = ['NUM_STEPS', 'WORLD', 'run_pairs']

WORLD = 2
NUM_STEPS = 3
HANG_SECONDS = 20.0
AT_ONCE = 16
Job = tuple[Spec, SyncSettings]


def _file(folder: Path, number: int, rank: int) -> Path:
    return folder / f'{number}-{rank}.pkl'


def _child(
    jobs: Sequence[Job], numbers: Sequence[int], rank: int, folder: Path
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
            spec, settings = jobs[number]
            batches = [batch_of(step, rank) for step in range(NUM_STEPS)]
            result = run_rank(build_net(spec), batches, settings, 1e-9)
            part = folder / f'part{rank}'
            part.write_bytes(pickle.dumps(result))
            part.rename(_file(folder, number, rank))
            if result.outcome is not RankOutcome.OK:
                break
            other = _file(folder, number, 1 - rank)
            while not other.exists():
                time.sleep(0.001)
            if pickle.loads(other.read_bytes()).outcome is not RankOutcome.OK:
                break
            dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _run_until_error(
    jobs: Sequence[Job], numbers: Sequence[int], folder: Path
) -> int:
    """How many jobs were run, at least one."""
    pids = []
    for rank in range(WORLD):
        pid = os.fork()
        if pid == 0:
            _child(jobs, numbers, rank, folder)
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


def run_pairs(jobs: Sequence[Job], folder: Path) -> list[list[RankResult]]:
    """Run models on two processes each.

    Args:
        jobs: Models and settings of DDP.
        folder: An empty one.

    Returns:
        What both ranks tell of each.
    """
    (folder / 'jobs').write_bytes(pickle.dumps(list(jobs)))
    root = Path(__file__).resolve().parents[2]
    environ = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(root)}
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
        [_read(_file(folder, number, rank), rank) for rank in range(WORLD)]
        for number in range(len(jobs))
    ]


def _read(path: Path, rank: int) -> RankResult:
    if path.exists():
        return pickle.loads(path.read_bytes())
    return RankResult(rank, RankOutcome.HUNG, error='no report')


def _main(folder: Path) -> None:
    jobs = pickle.loads((folder / 'jobs').read_bytes())
    start = 0
    while start < len(jobs):
        numbers = range(start, min(start + AT_ONCE, len(jobs)))
        start += _run_until_error(jobs, numbers, folder)


if __name__ == '__main__':
    _main(Path(sys.argv[1]))
