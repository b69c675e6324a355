"""Run the corpus: the tool on each config, and two steps of what it mends.

All processes are forked from one that has the hosts loaded. ::

    PYTHONPATH=.:tests python -m helpers.corpus_run [NAME ...]

prints the table; with names, what was found in these cases, too.
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mmengine.hooks import RuntimeInfoHook

from helpers import (
    corpus_detection,
    corpus_right,
    corpus_segmentation,
    corpus_settings,
    corpus_training,
)
from helpers.corpus_bases import Case, write_base, write_data
from helpers.toy_ranks import load_segmentation, start_ranks

CASES = {
    case.name: case
    for case in (
        *corpus_detection.CASES,
        *corpus_training.CASES,
        *corpus_segmentation.CASES,
        *corpus_settings.CASES,
    )
}
WARNING = 1
SECONDS = 300


class Outcome(NamedTuple):
    """What became of a config.

    Attributes:
        code: Exit code of the tool.
        findings: As in its report; none if it wrote none.
        printed: What it printed.
        reported: Whether it said that something is wrong.
        cause: Whether it named the cause.
        mended: Whether its fix, or the remedy by hand, trains two steps.
        by_fix: Whether that was a fix that the tool wrote.
    """

    code: int
    findings: list[dict]
    printed: str
    reported: bool = False
    cause: bool = False
    mended: bool = False
    by_fix: bool = False


@contextmanager
def two_steps_only() -> Iterator[None]:
    """Let trainings end well after two steps and a validation."""
    original = RuntimeInfoHook.after_train_iter

    def after_train_iter(self, runner, *args, **kwargs):
        original(self, runner, *args, **kwargs)
        if runner.iter >= 1:
            if runner.val_loop is not None:
                runner.val_loop.run()
            raise SystemExit(0)

    RuntimeInfoHook.after_train_iter = after_train_iter
    try:
        yield
    finally:
        RuntimeInfoHook.after_train_iter = original


def trains(config: Path) -> tuple[bool, str]:
    """Train two steps on two processes, and validate.

    Returns:
        Whether it went well, and what both processes printed.
    """
    work = config.with_suffix('')
    # What a training comes to that the preflight does not stop.
    argv = [config, '--work-dir', work, '--device', 'cpu', '--no-preflight']
    with two_steps_only():
        ranks = start_ranks(argv, 2, f'{work}.out')
        try:
            codes = ranks.wait(SECONDS, end_others=True)
        except AssertionError:  # they hang, and were killed
            codes = [1]
    return not any(codes), ranks.output(0) + ranks.output(1)


def preflight(config: Path, *more: str) -> Outcome:
    """Call the tool as its user does."""
    report = config.with_suffix('.json')
    argv = [config, '--json', report, '--store', config.with_suffix('.db')]
    ranks = start_ranks(
        [*argv, *more], 1, config.with_suffix('.printed'), tool='preflight'
    )
    (code,) = ranks.wait(SECONDS)
    findings = []
    if report.exists() and report.stat().st_size:
        findings = json.loads(report.read_bytes())['findings']
    return Outcome(code, findings, ranks.output())


def words(finding: dict) -> str:
    """What a finding says, in a line."""
    where = finding.get('location', {})
    return ' '.join(
        str(part)
        for part in (
            finding['rule'],
            where.get('key', ''),
            finding['message'],
            finding.get('remedy', ''),
            ' '.join(finding.get('names', ())),
        )
    )


def check_wrong(case: Case, data: Path, folder: Path) -> Outcome:
    """Run the tool on a wrong config, then train what mends it."""
    folder.mkdir(exist_ok=True)
    write_base(case.base, data, folder)
    config = folder / 'wrong.py'
    text = case.wrong.replace('DATA', str(data))
    config.write_text(f"_base_ = 'small.py'\n{text}\n")
    fixed = folder / 'fixed.py'
    outcome = preflight(config, '--fix', str(fixed))
    said = [
        words(finding)
        for finding in outcome.findings
        if finding['severity'] >= WARNING
    ]
    if outcome.code == 2:
        said.append(outcome.printed)
    cause = any(re.search(case.cause, text, re.DOTALL) for text in said)
    failed = cause or outcome.code != 0
    mended = by_fix = fixed.exists() and trains(fixed)[0]
    if not mended and case.right:
        by_hand = folder / 'right.py'
        text = case.right.replace('DATA', str(data))
        by_hand.write_text(f"_base_ = 'small.py'\n{text}\n")
        mended = trains(by_hand)[0]
    return outcome._replace(
        reported=failed, cause=cause, mended=mended and cause, by_fix=by_fix
    )


def check_right(name: str, data: Path, folder: Path) -> Outcome:
    """Run the tool on a right config; its errors are false."""
    folder.mkdir(exist_ok=True)
    return preflight(corpus_right.write_right(name, data, folder))


def errors_of(outcome: Outcome) -> list[str]:
    """The errors in a report, in words."""
    return [words(f) for f in outcome.findings if f['severity'] > WARNING]


def _show(outcome: Outcome) -> None:
    for finding in outcome.findings:
        print('   ', finding['severity'], words(finding)[:400])
    if outcome.code == 2:
        print('    ' + outcome.printed[-800:].replace('\n', '\n    '))


def print_table(names: Sequence[str], folder: Path) -> None:
    """Run cases, by default all, and print what became of them."""
    data = write_data(folder)
    load_segmentation()
    counts = dict.fromkeys(('reported', 'cause', 'mended', 'by_fix'), 0)
    wrong = [
        case for case in CASES.values() if not names or case.name in names
    ]
    for case in wrong:
        outcome = check_wrong(case, data, folder / case.name)
        marks = []
        for key in counts:
            counts[key] += getattr(outcome, key)
            marks.append(key if getattr(outcome, key) else '-' * len(key))
        print(f'{case.name:<28} {outcome.code}', *marks, case.thread)
        if names or not outcome.mended:
            _show(outcome)
        sys.stdout.flush()
    right = [n for n in corpus_right.RIGHT if not names or n in names]
    alarms = 0
    for name in right:
        outcome = check_right(name, data, folder / name)
        errors = errors_of(outcome)
        alarms += bool(errors) or outcome.code != 0
        print(f'{name:<28} {outcome.code} right', *errors)
        if names:
            _show(outcome)
        sys.stdout.flush()
    print(f'{len(wrong)} wrong: {counts}; {len(right)} right: {alarms} alarms')


if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as folder:
        print_table(sys.argv[1:], Path(folder))
