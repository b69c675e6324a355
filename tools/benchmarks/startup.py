"""What it takes to start: an import, --help, and the two checks of a config.

Each command runs in a process of its own, with an empty store and generated
data: ``import mmext``, ``--help`` of each tool, the label check of the small
CO-DINO on three images, and its preflight without data and with them. Given
are seconds of a processor, those of child processes included, and the memory
of the largest process, as medians.

``--reference`` is a checkout of another revision, such as one made by ``git
worktree add ../before REVISION``: its commands run in turns with ours, and
the ratio of both is printed. A command that it does not have is left empty.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from mmext.utils.cli import ToolParser, report_errors, run_tool

ROOT = Path(__file__).resolve().parents[2]
CONFIG = 'configs/co_dino/co_dino_r18_shapes.py'


class Cost(NamedTuple):
    """What a process took: seconds of a processor, and MiB at its peak."""

    seconds: float
    memory: float


def commands(data: Path) -> Iterator[tuple[str, list[str]]]:
    """Name and arguments of Python for each line of the table."""
    yield 'import mmext', ['-c', 'import mmext']
    for tool in sorted((ROOT / 'tools').glob('[!_]*.py')):
        name = f'tools/{tool.name}'
        yield f'{tool.name} --help', [name, '--help']
    options = [CONFIG, '--store', 'STORE', '--cfg-options']
    for name, tool, root in (
        ('validate_labels.py, 3 images', 'validate_labels', data),
        ('preflight.py, no data', 'preflight', data / 'none'),
        ('preflight.py, 3 images', 'preflight', data),
    ):
        yield name, [f'tools/{tool}.py', *options, f'data_root={root}']


def run(arguments: Sequence[str], root: Path, store: Path) -> Cost | None:
    """Run Python in a checkout; None if the tool is not there.

    Raises:
        RuntimeError: If it ends with another code than 0 or 1, for findings.
    """
    if arguments[0] != '-c' and not (root / arguments[0]).is_file():
        return None
    store.unlink(missing_ok=True)
    arguments = [str(store) if a == 'STORE' else a for a in arguments]
    with tempfile.TemporaryFile('w+') as printed:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=root,
            env={**os.environ, 'PYTHONPATH': str(root)},
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
        # In place of wait(): it tells what this one process took.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            printed.seek(0)
            raise RuntimeError(
                f'{" ".join(arguments)} in {root} must end with 0 or 1, got '
                f'{process.returncode}: {printed.read()[-2000:]}'
            )
    kib = usage.ru_maxrss / (1024 if sys.platform == 'darwin' else 1)
    return Cost(usage.ru_utime + usage.ru_stime, kib / 1024)


def middle(costs: Sequence[Cost | None]) -> Cost | None:
    """Medians of both numbers; None if there are none."""
    known = [cost for cost in costs if cost is not None]
    return Cost(*map(median, zip(*known))) if known else None


def measure(
    arguments: Sequence[str], roots: Sequence[Path], repeats: int, store: Path
) -> list[Cost | None]:
    """Medians of a command in each checkout, which take turns."""
    costs: list[list[Cost | None]] = [[] for _ in roots]
    for _ in range(repeats):
        for root, own in zip(roots, costs):
            own.append(run(arguments, root, store))
    return [middle(own) for own in costs]


def make_data(folder: Path) -> Path:
    """Two generated pictures to train on, and one for validation."""
    numbers = ['--num-train', '2', '--num-val', '1']
    tool = ROOT / 'tools' / 'make_shapes_dataset.py'
    subprocess.run(
        [sys.executable, tool, '--out', folder / 'shapes', *numbers],
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return folder / 'shapes'


def row(name: str, costs: Sequence[Cost | None]) -> list[str]:
    """Cells of a line of the table."""
    ours, theirs = costs[0], costs[-1] if len(costs) > 1 else None
    cells = [name, f'{ours.seconds:.2f}', f'{ours.memory:.0f}']
    if theirs is None:
        return [*cells, '', '', '']
    return [
        *cells,
        f'{theirs.seconds:.2f}',
        f'{theirs.memory:.0f}',
        f'{ours.seconds / theirs.seconds:.2f}',
    ]


def run_all(options: argparse.Namespace) -> None:
    """Measure what is asked for, and print the table."""
    roots = [ROOT]
    if options.reference is not None:
        roots.append(options.reference.resolve())
    table = Table()
    for column in ('', 's', 'MiB', 'reference s', 'MiB', 'ratio'):
        table.add_column(column, justify='right' if column else 'left')
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = make_data(folder)
        for title, arguments in commands(data):
            if options.only in title:
                costs = measure(
                    arguments, roots, options.repeats, folder / 'store'
                )
                table.add_row(*row(title, costs))
    Console().print(table)


def main(args: Sequence[str] | None = None) -> int:
    """Run the benchmark from a command line."""
    parser = ToolParser(description=__doc__)
    parser.add_argument(
        '--reference', type=Path, metavar='DIR', help='another checkout'
    )
    parser.add_argument(
        '--repeats',
        type=int,
        default=5,
        metavar='N',
        help='runs of each command (default: %(default)s)',
    )
    parser.add_argument(
        '--only',
        default='',
        metavar='TEXT',
        help='commands with this text, such as preflight, in their line',
    )
    options = parser.parse_args(args)
    if options.repeats < 1:
        parser.error('--repeats must be at least 1')
    reference = options.reference
    if reference is not None and not (reference / 'mmext').is_dir():
        parser.error(f'--reference must be a checkout, got {reference}')
    report_errors(parser, run_all, options)
    return 0


if __name__ == '__main__':
    run_tool(main)
