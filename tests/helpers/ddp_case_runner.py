"""Run cases of DDP on two processes each, in a fraction of a second."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.ddp_cases import Case, run_rank
from helpers.forked_pairs import Report, run_jobs

# Part of the message -> its name; the first that fits.
KINDS = {
    'Expected to have finished reduction': 'unfinished',
    'Expected to mark a variable ready only once': 'twice',
    'training graph has changed': 'changed',
    'Expected sparse gradient': 'unexpected',
    'Encountered gradient which is undefined': 'unexpected',
    'Connection closed by peer': 'lost',
    'Connection reset by peer': 'lost',
}


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


def run_job(case: Case, rank: int) -> Report:
    """What a rank tells of a case."""
    report = run_rank(case, rank)
    failed = bool(report['error'])
    # Ours must reach the other rank by itself, so that one is heard to its
    # end. PyTorch's does so by the end of its process.
    return Report(
        report, ends=failed and case.wrapper == 'torch', failed=failed
    )


def run_cases(cases: Iterable[Case], folder: Path) -> dict[str, Result]:
    """Run cases on two processes each; the results by name of the case."""
    cases = list(cases)
    hung = {'error': 'NoReport', 'message': 'hung or died', 'step': -1}
    return {
        case.name: Result(case.name, [report or hung for report in reports])
        for case, reports in zip(cases, run_jobs(run_job, cases, folder))
    }
