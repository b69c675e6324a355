"""Time and memory of segmentation losses: ours, mmseg's and PyTorch's.

Forward and backward from the logits of the head to their gradient, with
labels of which a twentieth is ignored:

- ade20k, cityscapes_b2, cityscapes_b6: resize to the labels, cross-entropy,
  mean over the pixels that count;
- grid: the same for 2 to 150 classes and strides 1 to 8 (c2_s1 to c150_s8),
  one image of 512 pixels a side, in one table. Ours counts the right pixels
  in any case, PyTorch does not; mmseg's accuracy is that of its heads;
- pidhead: all that PIDNet's head does after its last convolution, accuracy
  included. PyTorch has no such thing.

No class weights: with them, and a pixel to ignore, mmseg 1.2 ends in an
error, and forks of it differ in what they divide by. The sides must agree in
the loss and in the gradient.

"peak" is the most memory of tensors that is alive at once beyond what was
there before, from a count of the storages that operators return; "in S" is
in units of the logits at the size of the labels. On CUDA "allocated" is the
same from the allocator, workspaces of operators included, and "syncs" are
places where the host waits for the device.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from benchmark_parts import cuda_waits, median_seconds, positive
from live_bytes import TensorPeak
from loss_cases import CASES, GRID, Case, Side, make_case
from rich.console import Console
from rich.table import Table
from torch import Tensor

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.engine.launch import resolve_device
from mmext.utils.cli import report_errors, run_tool
from mmext.utils.files import atomic_path, check_outputs, prepare_outputs

LOSS_TOLERANCE = 1e-4
# Of the largest gradient; sums of float32 in another order.
GRADIENT_TOLERANCE = 1e-3
MIB = 2**20
COLUMNS = ('ms', 'ratio', 'peak MiB', 'in S', 'ratio')
COLUMNS += ('loss', 'gradient off by')


class Result(NamedTuple):
    """What was found out about one side of a case; memory in bytes.

    ``allocated`` and ``syncs`` are of CUDA, and None on a CPU.
    """

    case: str
    side: str
    seconds: float
    peak: int
    full: int
    allocated: int | None
    syncs: int | None
    loss: float
    loss_error: float
    gradient_error: float


def scale(text: str) -> float:
    """A number above 0, at most 1, for argparse."""
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f'must be in (0, 1], got {text}')
    return number


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    cases = [*CASES, 'grid']
    add('--cases', nargs='+', choices=cases, default=cases)
    add('--device', default='auto', help='auto, cpu, cuda or cuda:N')
    add('--repeats', type=positive, default=5, help='timed runs of each')
    add(
        '--scale',
        type=scale,
        default=1.0,
        metavar='F',
        help='factor of the sides of the images, for a quick look',
    )
    add('--json', metavar='FILE', help='write the numbers there, too')
    return parser


def step(case: Case, side: Side) -> Tensor:
    """Forward and backward; the gradients are in the logits."""
    for logits in case.logits:
        logits.grad = None
    loss = side.run()
    loss.backward()
    return loss.detach()


def examine(
    case: Case, side: Side, expected: list[Tensor] | None
) -> tuple[dict, list[Tensor]]:
    """Memory, syncs, loss and gradients of one side, not its time."""
    device = case.logits[0].device
    step(case, side)  # what is made once is made
    loss = step(case, side)
    results = [loss, *(logits.grad for logits in case.logits)]
    expected = results if expected is None else expected
    facts = {
        'loss': loss.item(),
        'loss_error': (abs(loss - expected[0]) / abs(expected[0])).item(),
        'gradient_error': max(
            ((ours - theirs).abs().max() / theirs.abs().max()).item()
            for ours, theirs in zip(results[1:], expected[1:])
        ),
        'allocated': None,
        'syncs': None,
    }
    for logits in case.logits:
        logits.grad = None
    if device.type == 'cuda':
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step(case, side)
        peak = torch.cuda.max_memory_allocated(device)
        facts['allocated'] = peak - before
        facts['syncs'] = len(cuda_waits(partial(step, case, side)))
    with TensorPeak(leave_out=expected) as memory:
        step(case, side)
    return facts | {'peak': memory.peak, 'full': case.full_bytes}, results


def check_same(results: Sequence[Result]) -> None:
    """Compare what the sides of a case compute."""
    for what, limit in (
        ('loss', LOSS_TOLERANCE),
        ('gradient', GRADIENT_TOLERANCE),
    ):
        errors = {
            result.side: getattr(result, f'{what}_error') for result in results
        }
        # Not "any is above": NaN is above nothing.
        if not all(error <= limit for error in errors.values()):
            raise ValueError(
                f'all sides must have the same {what} (rel. {limit}) in case '
                f'{results[0].case!r}, got these differences: {errors}'
            )


def measure(case: Case, repeats: int) -> list[Result]:
    """Results of all sides; the last side is the one to compare with."""
    device = case.logits[0].device
    facts: dict[str, dict] = {}
    expected = None
    for side in reversed(case.sides):
        facts[side.name], example = examine(case, side, expected)
        expected = example if expected is None else expected
    # One CPU thread: what other programs do does not count.
    alone = device.type == 'cpu' and torch.get_num_threads() == 1
    times = median_seconds(
        [partial(step, case, side) for side in case.sides],
        repeats,
        device,
        clock=time.process_time if alone else time.perf_counter,
    )
    results = [
        Result(case.name, side.name, seconds, **facts[side.name])
        for side, seconds in zip(case.sides, times)
    ]
    check_same(results)
    return results


def make_table(title: str, results: Sequence[Result]) -> Table:
    """The table of a case; ratios are to its first line."""
    table = Table(title=title)
    table.add_column('side')
    first = results[0]
    columns = list(COLUMNS)
    with_cuda = first.allocated is not None
    if with_cuda:
        columns[5:5] = ['allocated MiB', 'ratio', 'syncs']
    for column in columns:
        table.add_column(column, justify='right')
    for result in results:
        cells = [
            f'{result.seconds * 1000:.2f}',
            f'{result.seconds / first.seconds:.2f}',
            f'{result.peak / MIB:.1f}',
            f'{result.peak / result.full:.2f}',
            f'{result.peak / first.peak:.2f}',
            f'{result.loss:.6f}',
            f'{result.gradient_error:.0e}',
        ]
        if with_cuda:
            cells[5:5] = [
                f'{result.allocated / MIB:.1f}',
                f'{result.allocated / first.allocated:.2f}',
                str(result.syncs),
            ]
        table.add_row(result.side, *cells)
    return table


def make_grid(rows: Sequence[list[Result]]) -> Table:
    """The table of the grid: ours against each of the others."""
    table = Table(title='grid: resize and cross-entropy, 1 image, ms')
    others = [row.side for row in rows[0][1:]]
    table.add_column('case', no_wrap=True)
    for column in ('mmext', *others):
        table.add_column(column, justify='right')
    for side in others:
        table.add_column(f'mmext / {side}', justify='right')
    table.add_column('peak / torch', justify='right')
    for ours, *theirs in rows:
        times = [f'{item.seconds * 1000:.2f}' for item in (ours, *theirs)]
        ratios = [f'{ours.seconds / their.seconds:.2f}' for their in theirs]
        peak = f'{ours.peak / theirs[-1].peak:.2f}'
        table.add_row(ours.case, *times, *ratios, peak)
    return table


def write_json(path: str, device: torch.device, results: list) -> None:
    """Write the numbers, with what they were measured on."""
    name = 'cpu'
    if device.type == 'cuda':
        name = torch.cuda.get_device_name(device)
    content = {
        'torch': torch.__version__,
        'device': name,
        'threads': torch.get_num_threads(),
        'results': [result._asdict() for result in results],
    }
    with atomic_path(Path(path)) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + '\n')


def run(args: argparse.Namespace) -> None:
    """Measure the cases, print them, and write what was measured."""
    every: list[Result] = []
    device = resolve_device(args.device)
    for name in args.cases:
        if name == 'grid':
            cases = (make_case(item, args.scale, device) for item in GRID)
            rows = [measure(case, args.repeats) for case in cases]
            Console().print(make_grid(rows))
            every += [result for row in rows for result in row]
            continue
        case = make_case(name, args.scale, device)
        results = measure(case, args.repeats)
        Console().print(make_table(f'{case.title}, {device}', results))
        every += results
    if args.json:
        write_json(args.json, device, every)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = make_parser()
    args = parser.parse_args(argv)
    files = {'--json': args.json}
    report_errors(parser, check_outputs, files)
    with prepare_outputs(files):
        try:
            run(args)
        except (OSError, ValueError) as error:
            print(f'{parser.prog}: error: {error}', file=sys.stderr)
            return 1
    return 0


if __name__ == '__main__':
    run_tool(main)
