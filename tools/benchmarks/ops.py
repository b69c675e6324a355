"""Time mmext's operators, forward and backward, on typical shapes.

Compared are mmext's operators without kernels, and mmcv's compiled operators
where they are installed and have a kernel for the device, else operators as
one writes them without a backend. All run in turn in one process; times and
their ratios are printed. ``--plot`` draws deformable attention against the
number of queries and threads.
"""

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import cycle
from types import ModuleType
from typing import NamedTuple

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)

# isort: split
import naive_ops
import torch
from benchmark_parts import positive
from matplotlib import rc_context
from matplotlib.figure import Figure
from mmcv import ops
from mmcv.ops.multi_scale_deform_attn import (
    MultiScaleDeformableAttnFunction,
    multi_scale_deformable_attn_pytorch,
)
from rich.console import Console
from rich.table import Table
from torch import Tensor

from mmext.ops import active_backend, choose_ops_backend
from mmext.ops.finder import fill_module

OPS = (
    'nms',
    'soft_nms',
    'roi_align',
    'ms_deform_attn',
    'deform_conv2d',
    'modulated_deform_conv2d',
    'sigmoid_focal',
)

# Compiled mmcv has these for GPUs only.
GPU_ONLY = ('ms_deform_attn', 'sigmoid_focal')


class Case(NamedTuple):
    """One line of the table."""

    op: str
    shape: str
    run: Callable[..., Tensor]
    """mmcv's own function."""
    naive: Callable[..., Tensor]
    inputs: list[Tensor]
    """Those that require a gradient get one."""


@cache
def find_callers() -> list[ModuleType]:
    """Modules of mmcv that call operators."""
    return [
        module
        for name, module in sys.modules.items()
        if name.startswith('mmcv.ops.') and hasattr(module, 'ext_module')
    ]


@contextlib.contextmanager
def calling(ext: ModuleType) -> Iterator[None]:
    """Let mmcv's Python API call the operators of a module."""
    callers = find_callers()
    before = [module.ext_module for module in callers]
    for module in callers:
        module.ext_module = ext
    try:
        yield
    finally:
        for module, old in zip(callers, before):
            module.ext_module = old


def leaf(*shape: int, scale: float = 1.0) -> Tensor:
    """A random input that gets a gradient."""
    return (torch.randn(shape) * scale).requires_grad_()


def make_boxes(count: int, clusters: int, classes: int) -> list[Tensor]:
    """Boxes as a detector gives them, the classes moved apart."""
    centre = torch.rand(clusters, 2) * 1000
    size = torch.rand(clusters, 2) * 150 + 15
    pick = torch.randint(clusters, (count,))
    boxes = torch.cat([centre - size / 2, centre + size / 2], 1)[pick]
    boxes += torch.randn(count, 4) * 8
    boxes = torch.cat(
        [
            boxes[:, :2].minimum(boxes[:, 2:]),
            boxes[:, :2].maximum(boxes[:, 2:]),
        ],
        1,
    )
    boxes += torch.randint(classes, (count, 1)) * (boxes.max() + 1)
    return [boxes, torch.randperm(count) / count]


def make_rois(count: int, size: int) -> Tensor:
    """Regions on two images, as large as a level of a pyramid gets them."""
    wide = (torch.rand(count, 2) * 21 + 7).clamp(max=size) * 4
    low = torch.rand(count, 2) * (size * 4 - wide)
    image = torch.randint(2, (count, 1))
    return torch.cat([image, low, low + wide], 1)


def nms_cases() -> Iterator[Case]:
    """Suppression of proposals and of results."""
    for count, clusters, classes in (
        (1000, 100, 1),
        (4000, 800, 4),
        (9000, 2000, 5),
        (9000, 300, 80),
        (20000, 3000, 1),
    ):
        yield Case(
            'nms',
            f'{count} boxes, {classes} classes',
            lambda boxes, scores: ops.nms(boxes, scores, 0.7)[1],
            partial(naive_ops.nms, threshold=0.7),
            make_boxes(count, clusters, classes),
        )
    for count in (300, 4000):
        yield Case(
            'soft_nms',
            f'{count} boxes, linear',
            lambda boxes, scores: ops.soft_nms(boxes, scores, 0.5)[1],
            partial(naive_ops.soft_nms, threshold=0.5),
            make_boxes(count, count // 5, 4),
        )


def roi_cases() -> Iterator[Case]:
    """Pooling of 512 regions, or of few, to 7x7."""
    for count, size in (
        (512, 8),
        (512, 32),
        (512, 64),
        (64, 256),
        (8, 256),
    ):
        yield Case(
            'roi_align',
            f'{count} rois, 256 x {size} x {size}',
            lambda maps, rois: ops.roi_align(maps, rois, 7, 0.25),
            partial(naive_ops.roi_align, bins=7, scale=0.25),
            [leaf(2, 256, size, size), make_rois(count, size)],
        )


def attention_case(queries: int | None = None) -> Case:
    """Attention of a 600 x 400 image; by default that of the encoder."""
    shapes = torch.tensor([(50, 75), (25, 38), (13, 19), (7, 10)])
    ends = shapes.prod(1).cumsum(0)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    pixels = int(ends[-1])
    queries = queries or pixels
    return Case(
        'ms_deform_attn',
        f'{queries} queries, {pixels} pixels, 8 x 32',
        lambda value, location, weight: MultiScaleDeformableAttnFunction.apply(
            value,
            shapes.to(value.device),
            starts.to(value.device),
            location,
            weight,
            64,
        ),
        lambda value, location, weight: multi_scale_deformable_attn_pytorch(
            value, shapes.to(value.device), location, weight
        ),
        [
            leaf(1, pixels, 8, 32),
            torch.rand(1, queries, 8, 4, 4, 2).requires_grad_(),
            torch.rand(1, queries, 8, 4, 4).requires_grad_(),
        ],
    )


def attention_cases() -> Iterator[Case]:
    """Attention of a decoder and of an encoder."""
    yield attention_case(300)
    yield attention_case()


def conv_cases() -> Iterator[Case]:
    """Deformable 3x3 convolutions of a backbone stage."""
    for channels, size in ((64, 64), (256, 32)):
        maps = leaf(2, channels, size, size)
        offset, weight = (
            leaf(2, 18, size, size),
            leaf(channels, channels, 3, 3),
        )
        shape = f'{channels} x {size} x {size}, 3x3'
        yield Case(
            'deform_conv2d',
            shape,
            lambda x, offset, weight: ops.deform_conv2d(
                x, offset, weight, 1, 1
            ),
            lambda x, offset, weight: naive_ops.deform_conv(
                x, offset, torch.ones_like(offset[:, :9]), weight
            ),
            [maps, offset, weight],
        )
        yield Case(
            'modulated_deform_conv2d',
            shape,
            lambda x, offset, mask, weight: ops.modulated_deform_conv2d(
                x, offset, mask, weight, None, 1, 1
            ),
            naive_ops.deform_conv,
            [maps, offset, leaf(2, 9, size, size), weight],
        )


def loss_cases() -> Iterator[Case]:
    """Focal loss of a dense head."""
    yield Case(
        'sigmoid_focal',
        '20000 x 80',
        lambda logits, target: ops.sigmoid_focal_loss(
            logits, target, 2.0, 0.25, None, 'sum'
        ),
        naive_ops.sigmoid_focal,
        [leaf(20000, 80, scale=3), torch.randint(80, (20000,))],
    )


def all_cases() -> Iterator[Case]:
    """Every line of the table."""
    for cases in (
        nms_cases,
        roi_cases,
        attention_cases,
        conv_cases,
        loss_cases,
    ):
        yield from cases()


def step(function: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    """Forward and, where an input needs it, backward."""
    leaves = [x for x in inputs if x.requires_grad]
    out = function(*inputs)
    if leaves:
        ones = torch.ones_like(out)
        torch.autograd.grad(out, leaves, ones, allow_unused=True)
    if inputs[0].is_cuda:
        torch.cuda.synchronize()


def measure(
    runs: list[Callable[[], None]], repeats: int, *, alone: bool
) -> list[float]:
    """Milliseconds of each, run in turn after one round unmeasured.

    With one CPU thread the median of the time of the process, in which other
    programs do not count; else, since they only add to it, the least of what
    a clock shows.
    """
    clock = time.process_time if alone else time.perf_counter
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats + 1):
        for run, record in zip(runs, times):
            start = clock()
            run()
            record.append((clock() - start) * 1e3)
    pick = statistics.median if alone else min
    return [pick(record[1:]) for record in times]


def compare(
    case: Case, device: str, repeats: int, backends: Sequence[str]
) -> tuple[list[float], str]:
    """Times of ours with each back end, and of theirs, and who they are."""
    inputs = [x.detach().to(device) for x in case.inputs]
    for x, original in zip(inputs, case.inputs):
        x.requires_grad_(original.requires_grad)
    ours = ModuleType('mmcv._ext')
    fill_module(ours)

    def run_ours(backend: str) -> None:
        choose_ops_backend(backend)
        with calling(ours):
            step(case.run, inputs)

    if active_backend() == 'compiled' and not (
        device == 'cpu' and case.op in GPU_ONLY
    ):
        theirs, name = case.run, 'compiled mmcv'
    else:
        theirs = case.naive
        name = 'mmcv, PyTorch' if case.op == 'ms_deform_attn' else 'naive'
    runs = [
        *(partial(run_ours, backend) for backend in backends),
        partial(step, theirs, inputs),
    ]
    alone = device == 'cpu' and torch.get_num_threads() == 1
    return measure(runs, repeats, alone=alone), name


def plot(args: argparse.Namespace) -> None:
    """Draw the times of deformable attention, and print them."""
    figure = Figure((7, 4), layout='constrained')
    axes = figure.add_subplot()
    axes.set(
        xscale='log',
        yscale='log',
        xlabel='queries',
        ylabel='seconds, forward and backward',
        title='Deformable attention, 4 levels, 4 points, 8 heads of 32',
    )
    for threads, style in zip(args.threads, cycle(('-', '--', ':'))):
        torch.set_num_threads(threads)
        times = []
        for count in args.queries:
            case = attention_case(count)
            (ours, other), name = compare(
                case, args.device, args.repeats, ['auto']
            )
            times.append([ours / 1e3, other / 1e3])
            print(
                f'{threads} thread(s), {count} queries: mmext {ours:.1f} ms, '
                f'{name} {other:.1f} ms, {other / ours:.1f}x',
                flush=True,
            )
        for column, (label, color) in enumerate(
            (('mmext', 'tab:blue'), (name, 'tab:orange'))
        ):
            axes.plot(
                args.queries,
                [row[column] for row in times],
                style,
                color=color,
                marker='o',
                label=f'{label}, {threads} thread{"s" * (threads > 1)}',
            )
    axes.grid(which='both', alpha=0.3)
    axes.legend()
    # The same numbers give the same file.
    with rc_context({'svg.hashsalt': 'mmext', 'svg.fonttype': 'none'}):
        figure.savefig(args.plot, metadata={'Date': None})


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--ops', nargs='+', choices=OPS, default=OPS)
    parser.add_argument('--repeats', type=positive, default=5)
    parser.add_argument(
        '--threads',
        type=positive,
        nargs='+',
        default=[1],
        help='several are lines of the plot',
    )
    parser.add_argument('--device', default='cpu')
    parser.add_argument(
        '--plot',
        metavar='FILE.svg',
        help='draw deformable attention instead',
    )
    parser.add_argument(
        '--queries',
        type=positive,
        nargs='+',
        default=[1000, 3000, 10000, 30000, 100000],
        help='of the plot',
    )
    args = parser.parse_args(argv)
    if len(args.threads) > 1 and not args.plot:
        parser.error('--threads takes several with --plot only')
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or draw."""
    args = parse_args(argv)
    torch.manual_seed(0)
    if args.plot:
        plot(args)
        return 0
    (threads,) = args.threads
    torch.set_num_threads(threads)
    table = Table('operator', 'shapes')
    for title in (
        'mmext ms',
        'PyTorch ms',
        'speed-up',
        'other ms',
        'speed-up',
    ):
        table.add_column(title, justify='right')
    table.add_column('other')
    for case in all_cases():
        if case.op not in args.ops:
            continue
        (ours, plain, other), name = compare(
            case, args.device, args.repeats, ['auto', 'pytorch']
        )
        table.add_row(
            case.op,
            case.shape,
            f'{ours:.1f}',
            f'{plain:.1f}',
            f'{plain / ours:.2f}x',
            f'{other:.1f}',
            f'{other / ours:.2f}x',
            name,
        )
    Console(width=None if sys.stdout.isatty() else 130).print(table)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
