"""What mmext.DistributedDataParallel costs beside mmengine's wrapper.

It counts gradients by a hook on each parameter, and lets the processes vote
once per step over Gloo. Timed is a whole step, optimizer included, of

- small: many parameters of almost nothing, the worst case,
- few: 20 of them, where the vote is all there is,
- resnet: the ResNet-50 of mmdet, on small images,
- co-dino: the small one of the configs, on small images,

each with find_unused_parameters off and on, ours and theirs in turns in the
same processes. Losses must be the same. "CPU" is the time of the thread that
trains, which other programs disturb less; it leaves out what is waited for.
Below the table is the vote alone.

Starts its processes itself: two over Gloo on a CPU; over NCCL one for each
GPU, at most as many as asked for. With one GPU there is one process, so
nothing to average and no vote.
"""

import argparse
import copy
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import mmext  # before anything of mmcv and mmdet

# isort: split
import torch
from benchmark_parts import build_model, median_seconds, positive, random_batch
from mmdet.models.backbones import ResNet
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch import distributed as dist

from mmext.engine import (
    close_process_group,
    init_process_group,
)
from mmext.engine.distributed import DistributedDataParallel, StepVote, Vote
from mmext.engine.launch import pin_device, resolve_device
from mmext.utils.cli import run_tool
from mmext.utils.launcher_env import read_launcher_env

CO_DINO = mmext.config_path('_base_/models/co_dino_r18_small.py')
MODELS = ('small', 'few', 'resnet', 'co-dino')
TOLERANCE = 1e-5
VOTES = 200
FEW = 20
SMALL_FACTOR = 5  # these steps are short


class Line(NamedTuple):
    """One line of the table; times in seconds."""

    model: str
    tensors: int
    find_unused: bool
    ours: float
    theirs: float
    our_cpu: float
    their_cpu: float


class Squares(BaseModel):
    """A network whose loss is the mean square of its results."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(
        self, inputs: Tensor, mode: str = 'tensor'
    ) -> dict[str, Tensor]:
        """The loss, whatever the mode is."""
        results = self.net(inputs)
        if isinstance(results, Tensor):
            results = (results,)
        return {'loss': sum(result.square().mean() for result in results)}


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add('--models', nargs='+', choices=MODELS, default=MODELS)
    add('--device', default='auto', help='auto, cpu or cuda')
    add('--processes', type=positive, default=2)
    add('--tensors', type=positive, default=600, help='of the small ones')
    add('--size', type=positive, default=64, metavar='PIXELS')
    add(
        '--repeats',
        type=positive,
        default=7,
        help='timed steps of each, five times as many of the small tensors',
    )
    return parser


def make_model(
    name: str, args: argparse.Namespace, device: torch.device
) -> tuple[nn.Module, dict]:
    """A model, the same in each process, and a batch of this process's."""
    torch.manual_seed(0)
    seed = 1 + dist.get_rank()
    if name == 'co-dino':
        model = build_model(CO_DINO, device)
        return model, random_batch(args.size, 3, model.num_classes, seed)
    random = torch.Generator().manual_seed(seed)
    if name in ('small', 'few'):
        count = FEW if name == 'few' else args.tensors
        layers = (nn.Linear(4, 4, bias=False) for _ in range(count))
        model = Squares(nn.Sequential(*layers))
        inputs = torch.randn(2, 4, generator=random)
    else:
        model = Squares(ResNet(50))
        size = (2, 3, args.size, args.size)
        inputs = torch.randn(size, generator=random)
    return model.to(device).train(), {'inputs': inputs}


def make_step(
    wrapper: Callable[..., nn.Module],
    model: nn.Module,
    batch: dict,
    device: torch.device,
    find_unused: bool,
) -> Callable[[], float]:
    """A training step of a copy of the model under a wrapper."""
    wrapped = wrapper(
        copy.deepcopy(model),
        device_ids=[device.index] if device.type == 'cuda' else None,
        find_unused_parameters=find_unused,
        broadcast_buffers=False,
    )
    sgd = torch.optim.SGD(wrapped.parameters(), lr=1e-5)
    optimizer = OptimWrapper(sgd)

    def step() -> float:
        torch.manual_seed(0)  # of the noise in it
        return wrapped.train_step(batch, optimizer)['loss'].item()

    return step


def compare(
    name: str,
    args: argparse.Namespace,
    device: torch.device,
    find_unused: bool,
) -> Line:
    """Time both wrappers on one model."""
    model, batch = make_model(name, args, device)
    steps = [
        make_step(wrapper, model, batch, device, find_unused)
        for wrapper in (DistributedDataParallel, MMDistributedDataParallel)
    ]
    # The second step has the buckets that the first one found best.
    losses = [[step() for step in steps] for _ in range(2)][-1]
    if not math.isclose(*losses, rel_tol=TOLERANCE):
        raise ValueError(
            f'both wrappers must have the same loss, got {losses} for {name}'
        )
    repeats = args.repeats * (SMALL_FACTOR if name in ('small', 'few') else 1)
    times = [
        seconds
        for clock in (time.perf_counter, time.thread_time)
        for seconds in median_seconds(
            steps, repeats, device, before=dist.barrier, clock=clock
        )
    ]
    tensors = sum(p.requires_grad for p in model.parameters())
    return Line(name, tensors, find_unused, *times)


def vote_seconds(device: torch.device) -> float:
    """Median duration of the vote of a step in which all is well."""
    cast = partial(StepVote(dist.group.WORLD).cast, Vote.OK)
    cast()
    return median_seconds([cast], VOTES, device, before=dist.barrier)[0]


def lines(args: argparse.Namespace, device: torch.device) -> Iterator[Line]:
    """All lines of the table, in this process of several."""
    for name in args.models:
        for find_unused in (False, True):
            yield compare(name, args, device, find_unused)


def make_table(rows: Sequence[Line], vote: float, where: str) -> Table:
    """The table, and the vote below it."""
    table = Table(
        title=f'DDP wrappers, {where}',
        caption=f'vote alone: {vote * 1e6:.0f} us',
    )
    table.add_column('model')
    for column in ('tensors', 'find_unused'):
        table.add_column(column, justify='right')
    columns = ('ours ms', 'theirs ms', 'ours / theirs', 'CPU of the thread')
    for column in columns:
        table.add_column(column, justify='right')
    for row in rows:
        table.add_row(
            row.model,
            str(row.tensors),
            str(row.find_unused),
            f'{row.ours * 1e3:.2f}',
            f'{row.theirs * 1e3:.2f}',
            f'{row.ours / row.theirs:.3f}',
            f'{row.our_cpu / row.their_cpu:.3f}',
        )
    return table


def run(args: argparse.Namespace, device: torch.device) -> None:
    """Measure, in a process group; its first process prints the table."""
    rows, vote = list(lines(args, device)), vote_seconds(device)
    if dist.get_rank() == 0:
        where = (
            f'{dist.get_world_size()} processes, {dist.get_backend()}, '
            f'{args.size} px, medians of {args.repeats}'
        )
        Console().print(make_table(rows, vote, where))


def start(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Start the processes; returns their exit code."""
    count = args.processes
    if resolve_device(args.device).type == 'cuda':
        count = min(count, torch.cuda.device_count())
    launcher = ('-m', 'torch.distributed.run', '--standalone')
    processes = ('--nproc-per-node', str(count))
    # Known: find_unused_parameters finds none here, and old argument names.
    quiet = {'PYTHONWARNINGS': 'ignore', 'TORCH_CPP_LOG_LEVEL': 'ERROR'}
    return subprocess.call(
        [sys.executable, *launcher, *processes, __file__, *argv],
        env={**os.environ, **quiet},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        if 'RANK' not in os.environ:
            return start(args, sys.argv[1:] if argv is None else argv)
        env = read_launcher_env('pytorch', os.environ)
        device = resolve_device(args.device, env)
        pin_device(device)
        init_process_group(env, device, {'timeout': 120})
        run(args, device)
    except ValueError as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1
    finally:
        close_process_group()
    return 0


if __name__ == '__main__':
    run_tool(main)
