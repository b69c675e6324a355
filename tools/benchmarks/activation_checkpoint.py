"""Memory and time of a whole training step, with and without checkpointing.

CO-DINO with a ResNet-50 on one image, forward and backward, with

- none: no activation checkpointing,
- config: what the config asks for,
- all: all blocks of the backbone, all layers of encoder and decoder,
- theirs: the same modules, by the reentrant checkpoint of the hosts, which
  leaves out blocks whose input needs no gradient, such as the first one
  behind a frozen stem.

All variants run in this process, in turns, with the same weights, image and
random numbers; losses and norms of gradients must be the same.

"saved" is the largest size, during forward and backward, of all distinct
storages that autograd has saved and that are still in memory. Parameters and
buffers are left out. What a checkpoint computes again in the backward counts
from then on until it is freed, so the peak holds the recomputed tensors of
one block at a time. Gradients on their way, workspaces of operators and
tensors that nothing saved do not count.

On CUDA "allocated" has all of them: the peak of the allocator less what was
allocated before, when gradients of parameters were there already. "RSS so
far" is the largest resident memory of this process up to then, all else in it
included; variants that need less memory run first.
"""

import argparse
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import mmext  # before anything of mmcv and mmdet

# isort: split
import torch
from benchmark_parts import build_model, median_seconds, positive, random_batch
from live_bytes import SavedBytes
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmext.engine.launch import resolve_device
from mmext.models.checkpointing.checkpoint import (
    checkpoint_module,
    checkpointable_blocks,
    is_checkpointed,
)
from mmext.models.co_dino.detector import CoDETR
from mmext.utils.cli import run_tool

CONFIG = mmext.config_path('_base_/models/co_dino_5scale_r50.py')
VARIANTS = ('none', 'config', 'all', 'theirs')
LOSS_TOLERANCE = 1e-5
# Sums in another order, as atomic additions of a GPU do them.
GRADIENT_TOLERANCE = 1e-3
MIB = 2**20


class Result(NamedTuple):
    """One line of the table; memory in bytes."""

    name: str
    saved: int
    allocated: int | None
    resident: int
    loss: float
    gradient: float


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add('--config', default=CONFIG, help='default: CO-DINO R50, five scales')
    add('--device', default='auto', help='auto, cpu, cuda or cuda:N')
    add('--size', type=positive, default=1024, metavar='PIXELS')
    add('--boxes', type=positive, default=10)
    add('--repeats', type=positive, default=3, help='timed runs of each')
    add('--variants', nargs='+', choices=VARIANTS, default=VARIANTS)
    return parser


def reentrant(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A forward under a reentrant checkpoint, where the hosts use one."""

    def forward(*args: Any) -> Any:
        if any(isinstance(x, Tensor) and x.requires_grad for x in args):
            return checkpoint(plain, *args, use_reentrant=True)
        return plain(*args)

    return forward


def find_variants(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Modules to checkpoint by variant; the model is left with none."""
    if not isinstance(model, CoDETR):
        raise ValueError(
            'model of the config must be a mmext.CoDETR, got '
            f'{type(model).__name__}'
        )
    configured = [m for m in model.modules() if is_checkpointed(m)]
    for module in configured:
        del module.__dict__['forward']
    transformer = model.query_head.transformer
    everything = [
        *checkpointable_blocks(model.backbone),
        *transformer.encoder.layers,
        *transformer.decoder.layers,
    ]
    modules = ([], configured, everything, everything)
    return dict(zip(VARIANTS, modules))


@contextmanager
def checkpointed(modules: Sequence[nn.Module], ours: bool) -> Iterator[None]:
    """Checkpoint modules in our way or in that of the hosts."""
    for module in modules:
        if ours:
            checkpoint_module(module)
        else:
            module.__dict__['forward'] = reentrant(module.forward)
    try:
        yield
    finally:
        for module in modules:
            del module.__dict__['forward']


def step(model: nn.Module, batch: dict) -> float:
    """Forward and backward; returns the loss."""
    torch.manual_seed(1)
    data = model.data_preprocessor(batch, True)
    loss, _ = model.parse_losses(model(**data, mode='loss'))
    loss.backward()
    return loss.item()


def count(name: str, model: nn.Module, run: Callable[[], float]) -> Result:
    """Memory of a step, and what it computes."""
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    model.zero_grad(set_to_none=False)
    device, allocated = gradients[0].device, None
    counter = SavedBytes(model)
    if device.type == 'cuda':
        torch.cuda.reset_peak_memory_stats(device)
        allocated = -torch.cuda.memory_allocated(device)
    with counter.counting():
        loss = run()
    if device.type == 'cuda':
        allocated += torch.cuda.max_memory_allocated(device)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform != 'darwin':
        resident *= 1024
    norm = torch.stack([grad.norm() for grad in gradients]).norm().item()
    return Result(name, counter.peak, allocated, resident, loss, norm)


def check_same(results: Sequence[Result]) -> None:
    """Compare what the variants compute."""
    for what, tolerance in (
        ('loss', LOSS_TOLERANCE),
        ('gradient', GRADIENT_TOLERANCE),
    ):
        values = {result.name: getattr(result, what) for result in results}
        first, *others = values.values()
        if not all(
            math.isclose(first, other, rel_tol=tolerance) for other in others
        ):
            raise ValueError(
                f'all variants must have the same {what} '
                f'(rel. {tolerance}), got {values}'
            )


def measure(
    args: argparse.Namespace, device: torch.device
) -> list[tuple[Result, float]]:
    """Results and median seconds, in the order of ``VARIANTS``."""
    model = build_model(args.config, device)
    batch = random_batch(args.size, args.boxes, model.num_classes)
    variants = find_variants(model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)

    def run(name: str) -> float:
        with checkpointed(variants[name], ours=name != 'theirs'):
            return step(model, batch)

    names = [name for name in VARIANTS if name in args.variants]
    # The least memory first, as a process never forgets its peak.
    sparing = sorted(names, key=lambda name: -len(variants[name]))
    output = {}
    for name in sparing:
        output[name] = count(name, model, partial(run, name))
        # A large image takes minutes on a CPU.
        saved = output[name].saved / MIB
        print(f'{name}: saved {saved:.1f} MiB', file=sys.stderr)
    results = [output[name] for name in names]
    check_same(results)
    runs = [partial(run, name) for name in names]
    # One CPU thread: what other programs do does not count.
    alone = device.type == 'cpu' and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    times = median_seconds(runs, args.repeats, device, clock=clock)
    return list(zip(results, times))


def make_table(title: str, rows: Sequence[tuple[Result, float]]) -> Table:
    """The table; ratios are to its first line."""
    table = Table(title=title)
    table.add_column('checkpointing')
    first, first_time = rows[0]
    with_cuda = first.allocated is not None
    columns = ['saved MiB', 'ratio', 's', 'ratio', 'RSS so far MiB']
    if with_cuda:
        columns[2:2] = ['allocated MiB', 'ratio']
    for column in columns:
        table.add_column(column, justify='right')
    for result, seconds in rows:
        cells = [
            f'{result.saved / MIB:.1f}',
            f'{result.saved / first.saved:.2f}',
            f'{seconds:.3f}',
            f'{seconds / first_time:.2f}',
            f'{result.resident / MIB:.0f}',
        ]
        if with_cuda:
            cells[2:2] = [
                f'{result.allocated / MIB:.1f}',
                f'{result.allocated / first.allocated:.2f}',
            ]
        table.add_row(result.name, *cells)
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        device = resolve_device(args.device)
        rows = measure(args, device)
    except (OSError, ValueError) as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1
    title = (
        f'A training step on {device}: {args.size} px, {args.boxes} boxes, '
        f'medians of {args.repeats}'
    )
    Console().print(make_table(title, rows))
    return 0


if __name__ == '__main__':
    run_tool(main)
