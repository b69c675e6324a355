"""Run cases of DDP on two processes each, in a fraction of a second.

``run_cases`` starts one light process that loads PyTorch once and forks two
ranks for some cases. They end with the first error, and others are forked for
the cases that are left. Those that hang are killed.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from ddp_cases import WORLD_SIZE, Case, run_rank
from torch import distributed as dist

__all__ = ['Result', 'run_cases']

CASES = 'cases.json'
HANG_SECONDS = 20.0
# Cases without an error that are run by the same processes.
AT_ONCE = 12
# Part of the message -> its name; the first that fits.
KINDS = {
    'Expected to have finished reduction': 'unfinished',
    'Expected to mark a variable ready only once': 'twice',
    'training graph has changed': 'changed',
    'Connection closed by peer': 'lost',
    'Connection reset by peer': 'lost',
}


def _child(cases: Sequence[Case], rank: int, folders: Sequence[Path]) -> None:
    """What a forked rank does, up to the first error; it never returns."""
    try:
        torch.set_num_threads(1)
        for case, folder in zip(cases, folders):
            dist.init_process_group(
                'gloo',
                f'file://{folder}/store',
                rank=rank,
                world_size=WORLD_SIZE,
                timeout=timedelta(seconds=HANG_SECONDS),
            )
            report = run_rank(case, rank)
            part = folder / f'part{rank}'
            part.write_text(json.dumps(report))
            part.rename(_report(folder, rank))
            # Ours must reach the other rank by itself, so that one is heard
            # to its end. PyTorch's does so by the end of its process.
            if report['error'] and case.wrapper == 'torch':
                break
            others = [_report(folder, other) for other in range(WORLD_SIZE)]
            while not all(other.exists() for other in others):
                time.sleep(0.001)
            if any(json.loads(o.read_text())['error'] for o in others):
                break
            dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _report(folder: Path, rank: int) -> Path:
    return folder / f'{rank}.json'


def _run_until_error(cases: Sequence[Case], folders: Sequence[Path]) -> int:
    """Fork ranks for cases, of which an error is the last that they run.

    Returns:
        How many cases were run, at least one.
    """
    pids = []
    for rank in range(WORLD_SIZE):
        pid = os.fork()
        if pid == 0:
            _child(cases, rank, folders)
        pids.append(pid)
    end = time.monotonic() + HANG_SECONDS + len(cases)
    while pids:
        pids = [p for p in pids if os.waitpid(p, os.WNOHANG)[0] == 0]
        if time.monotonic() > end:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    done = [folder for folder in folders if any(folder.glob('*.json'))]
    return max(len(done), 1)


def _read_reports(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(_report(folder, rank).read_text())
        if _report(folder, rank).exists()
        else {'error': 'NoReport', 'message': 'hung or died', 'step': -1}
        for rank in range(WORLD_SIZE)
    ]


@dataclass(frozen=True)
class Result:
    """Reports of both ranks of a case."""

    name: str
    reports: list[dict[str, Any]]

    def kinds(self) -> list[str]:
        """What each rank raised and in which step, as in 'twice@0'."""
        return [_kind(report) for report in self.reports]

    def error(self) -> float:
        """Largest difference to the true mean gradients, of any step."""
        return max(
            _distance(mine, true)
            for report in self.reports
            for mine, true in zip(
                report['gradients'], report['true_gradients']
            )
        )

    def divergence(self) -> float:
        """Largest difference of the ranks' weights at the end."""
        return _distance(*(report['weights'] for report in self.reports))

    def loss_error(self) -> float:
        """Largest difference to the losses of one process."""
        return max(
            _distance(report['losses'], report['true_losses'])
            for report in self.reports
        )

    def outcome(self, tolerance: float = 1e-12) -> str:
        """'ok', what was raised and when, or what is wrong in silence.

        'diverged' are ranks with other weights, 'untrained' ranks that agree
        on gradients that are not those of one process.
        """
        kinds = self.kinds()
        if kinds != ['ok'] * len(kinds):
            return kinds[0] if len(set(kinds)) == 1 else '/'.join(kinds)
        if self.divergence() > tolerance:
            return 'diverged'
        worst = max(self.error(), self.loss_error())
        return 'ok' if worst <= tolerance else 'untrained'


def _distance(mine: list[float], true: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(mine, true, strict=True))


def _kind(report: dict[str, Any]) -> str:
    if not report['error']:
        return 'ok'
    kinds = [name for text, name in KINDS.items() if text in report['message']]
    if report['error'] != 'RuntimeError' or not kinds:
        kinds = [report['error']]
    return f'{kinds[0]}@{report["step"]}'


def run_cases(cases: Iterable[Case], folder: Path) -> dict[str, Result]:
    """Run cases on two processes each.

    Args:
        cases: With different names.
        folder: An empty one.

    Returns:
        The result of each case by its name.
    """
    cases = list(cases)
    Path(folder, CASES).write_text(json.dumps([*map(asdict, cases)]))
    root = Path(__file__).resolve().parents[2]
    environ = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(root)}
    output = Path(folder, 'output')
    with output.open('w') as file:
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', __file__, str(folder)],
            env=environ,
            stdout=file,
            stderr=file,
        )
    assert done.returncode == 0, output.read_text()[-3000:]
    return {
        case.name: Result(case.name, _read_reports(Path(folder, str(number))))
        for number, case in enumerate(cases)
    }


def _main(folder: Path) -> None:
    cases = [Case(**case) for case in json.loads((folder / CASES).read_text())]
    folders = [folder / str(number) for number in range(len(cases))]
    for each in folders:
        each.mkdir()
    start = 0
    while start < len(cases):
        part = slice(start, start + AT_ONCE)
        start += _run_until_error(cases[part], folders[part])


if __name__ == '__main__':
    _main(Path(sys.argv[1]))
