"""The step of an optimizer with one group per parameter, and with few.

For the parameters of a config's model, with random gradients:

- single: MMEngine's constructor, a group for each parameter where the config
  has a paramwise_cfg,
- merged: groups with the same settings are one; PyTorch chooses how,
- foreach: the same with foreach=True,
- default: what mmext.MergedOptimWrapperConstructor makes, fused where PyTorch
  can.

All in turns on the same gradients. Weights must be the same after the steps,
those of a fused step up to rounding. Clipping and schedules are not timed.
"""

import argparse
import copy
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import mmext  # before anything of mmcv and mmdet

# isort: split
import torch
from benchmark_parts import build_model, median_seconds, positive
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from rich.console import Console
from rich.table import Table
from torch import nn

from mmext.engine.launch import resolve_device
from mmext.utils.cli import run_tool

CO_DINO = mmext.config_path('co_dino/co_dino_5scale_r50_8xb2_1x_coco.py')
MERGED = 'mmext.MergedOptimWrapperConstructor'
# Constructor, and further settings of the optimizer.
WAYS = {
    'single': ('DefaultOptimWrapperConstructor', {}),
    'merged': (MERGED, {'fused': None}),
    'foreach': (MERGED, {'foreach': True}),
    'default': (MERGED, {}),
}
KEYS = ('type', 'constructor', 'optimizer', 'paramwise_cfg')
CHECKED = 3  # steps before the weights are compared
TOLERANCE = 1e-6


class Line(NamedTuple):
    """One line of the table; the time in seconds."""

    way: str
    groups: int
    fused: bool
    seconds: float
    distance: float


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add('--config', default=CO_DINO, help='of a detector (default: CO-DINO)')
    add('--device', default='auto', help='auto, cpu, cuda or cuda:N')
    add('--repeats', type=positive, default=7, help='timed steps of each way')
    return parser


def make_optimizer(
    model: nn.Module, cfg: Config, way: str
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A copy of the model, and its optimizer."""
    constructor, options = WAYS[way]
    section = copy.deepcopy(cfg.optim_wrapper)
    section.type = 'OptimWrapper'
    section.constructor = constructor
    section.optimizer.update(options)
    own = copy.deepcopy(model)
    wrapper = build_optim_wrapper(
        own, {k: v for k, v in section.items() if k in KEYS}
    )
    return own, wrapper.optimizer


def compare(
    config: str,
    device: torch.device,
    repeats: int,
    clock: Callable[[], float],
) -> tuple[int, list[Line]]:
    """Number of tensors, and a line for each way."""
    cfg = Config.fromfile(config)
    if 'optim_wrapper' not in cfg:
        raise ValueError(
            f'config must have an optim_wrapper, got none in {config!r}'
        )
    model = build_model(config, device)
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = [1e-3 * torch.randn_like(item) for item in trained]
    logger = MMLogger.get_current_instance()
    logger.setLevel('ERROR')  # else some lines for each parameter
    built = [make_optimizer(model, cfg, way) for way in WAYS]
    for own, _ in built:
        parameters = (p for p in own.parameters() if p.requires_grad)
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient
    steps = [optimizer.step for _, optimizer in built]
    for step in steps * CHECKED:
        step()  # the first one makes the state
    theirs = list(built[0][0].parameters())
    distances = []
    for way, (own, _) in zip(WAYS, built):
        distance = max(
            (one - other).abs().max().item()
            for one, other in zip(own.parameters(), theirs)
            if one.numel()
        )
        if distance > TOLERANCE:
            raise ValueError(
                f'all ways must give the same weights, got {distance:.2g} '
                f'between {way!r} and {next(iter(WAYS))!r}'
            )
        distances.append(distance)
    times = median_seconds(steps, repeats, device, clock=clock)
    groups = [optimizer.param_groups for _, optimizer in built]
    lines = [
        Line(way, len(own), bool(own[0].get('fused')), seconds, distance)
        for way, own, seconds, distance in zip(WAYS, groups, times, distances)
    ]
    return len(trained), lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = make_parser()
    args = parser.parse_args(argv)
    device = resolve_device(args.device)
    threads = torch.get_num_threads()
    clock = time.perf_counter
    if device.type == 'cpu' and threads == 1:
        # Of this process alone, on a machine that others use, too.
        clock = time.process_time
    try:
        tensors, lines = compare(args.config, device, args.repeats, clock)
    except ValueError as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1
    table = Table(
        title=f'Optimizer step on {device}: {tensors} tensors',
        caption=f'medians of {args.repeats}, {threads} threads, '
        f'{clock.__name__}',
    )
    table.add_column('way')
    for column in ('groups', 'fused', 'ms', 'of single', 'distance'):
        table.add_column(column, justify='right')
    for line in lines:
        table.add_row(
            line.way,
            str(line.groups),
            'yes' if line.fused else 'no',
            f'{1000 * line.seconds:.1f}',
            f'{line.seconds / lines[0].seconds:.2f}',
            f'{line.distance:.1g}',
        )
    Console().print(table)
    return 0


if __name__ == '__main__':
    run_tool(main)
