"""A training step of EVA-02's ViT, beside the one of the original CO-DETR.

``--reference`` is a checkout of Sense-X/Co-DETR, of which only
``mmdet/models/backbones/vit.py`` runs; it needs the package einops, and
stand-ins are put in place of mmcv 1.x, fvcore, fairscale and timm. Both sides
have the same weights and picture, must give the same map, and take turns.
``saved`` are the bytes that autograd keeps for the backward pass.
"""

import argparse
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import torch
from mmengine.model import BaseModule
from mmengine.registry import Registry
from rich.console import Console
from rich.table import Table
from torch import nn

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.engine import keep_freed_memory, resolve_device
from mmext.models import EVA02ViT
from mmext.utils.cli import run_tool

sys.path.insert(0, str(Path(__file__).parent))
from benchmark_parts import median_seconds, positive
from live_bytes import SavedBytes

FILE = 'mmdet/models/backbones/vit.py'
PATCH, WIDTH, HEADS = 16, 1024, 16
TOLERANCE = 1e-3
_ABSENT = (
    *('fvcore', 'fvcore.nn', 'fvcore.nn.weight_init'),
    *('fairscale', 'fairscale.nn', 'fairscale.nn.checkpoint'),
    *('timm', 'timm.models', 'timm.models.layers'),
    *('mmcv.cnn', 'mmcv.cnn.bricks', 'mmcv.cnn.bricks.transformer'),
    *('mmcv.cnn.utils', 'mmcv.cnn.utils.weight_init', 'mmcv.utils'),
    *('scipy', 'mmcv.runner'),
)


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add('--reference', type=Path, required=True, help='Sense-X/Co-DETR')
    add('--device', default='auto', help='auto, cpu, cuda or cuda:N')
    add('--height', type=positive, default=512, metavar='PIXELS')
    add('--width', type=positive, default=512, metavar='PIXELS')
    add('--depth', type=positive, default=4, help='every fourth is global')
    add('--repeats', type=positive, default=3, help='timed runs of each side')
    return parser


def load_reference(
    checkout: Path, file: str = FILE, name: str = 'ViT'
) -> type[nn.Module]:
    """A class of the checkout, without what its package needs besides.

    The recording of tests/oracles uses it, too, for the neck as well.
    """

    def keep(*_: object) -> Callable[[Callable], Callable]:
        return lambda function: function

    before = {name: sys.modules.get(name) for name in _ABSENT}
    sys.modules |= {name: MagicMock() for name in _ABSENT}
    runner = sys.modules['mmcv.runner']
    runner.BaseModule, runner.auto_fp16 = BaseModule, keep
    layers = sys.modules['timm.models.layers']
    layers.trunc_normal_ = nn.init.trunc_normal_
    for package in ('', '.models', '.models.backbones', '.models.necks'):
        sys.modules[f'reference{package}'] = ModuleType(package)
    utils = sys.modules['reference.utils'] = ModuleType('utils')
    utils.get_root_logger = None
    builder = sys.modules['reference.models.builder'] = ModuleType('builder')
    builder.BACKBONES = builder.NECKS = models = Registry('reference')
    try:
        parts = Path(file).with_suffix('').parts[1:]
        spec = importlib.util.spec_from_file_location(
            '.'.join(('reference', *parts)), checkout / file
        )
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    finally:
        sys.modules |= {k: module for k, module in before.items() if module}
    return models.get(name)


def build(
    reference: type[nn.Module], depth: int
) -> tuple[nn.Module, nn.Module]:
    """Ours and theirs with the same weights."""
    windows = [index for index in range(depth) if index % 4 != 3]
    torch.manual_seed(0)
    ours = EVA02ViT(
        {'embed_dims': WIDTH, 'num_layers': depth, 'num_heads': HEADS}
    )
    theirs = reference(
        embed_dim=WIDTH,
        depth=depth,
        num_heads=HEADS,
        window_size=ours.window_size,
        window_block_indexes=windows,
        pretrain_img_size=PATCH * ours.grid[0],
    )
    left = theirs.load_state_dict(ours.state_dict(), strict=False)
    if left.unexpected_keys or any('rope' not in k for k in left.missing_keys):
        raise ValueError(f'the sides must have the same weights, got {left}')
    return ours, theirs


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if not (args.reference / FILE).is_file():
        parser.error(f'--reference must hold {FILE}, got {args.reference}')
    device = resolve_device(args.device)
    keep_freed_memory()
    sides = build(load_reference(args.reference), args.depth)
    images = torch.randn(1, 3, args.height, args.width).to(device)
    for side in sides:
        side.to(device).train()

    def step(side: nn.Module) -> torch.Tensor:
        side.zero_grad()
        (out,) = side(images)
        out.square().mean().backward()
        return out.detach()

    ours, theirs = map(step, sides)
    distance = (ours - theirs).abs().max().item()
    if not distance <= TOLERANCE:
        raise ValueError(f'the maps must be the same, got {distance:.2g}')
    saved = []
    for side in sides:
        counter = SavedBytes(side)
        with counter.counting():
            step(side)
        saved.append(counter.peak / 2**20)
    seconds = median_seconds(
        [lambda side=side: step(side) for side in sides], args.repeats, device
    )
    grid = math.ceil(args.height / PATCH), math.ceil(args.width / PATCH)
    table = Table(
        title=f'{args.depth} blocks, {grid[0]} x {grid[1]} patches, {device}',
        caption=f'medians of {args.repeats}, {torch.get_num_threads()} '
        f'threads; distance of the maps {distance:.1g}',
    )
    for column in ('', 'ours', 'theirs', 'ratio'):
        table.add_column(column, justify='right')
    for name, (one, other) in (('step (s)', seconds), ('saved (MiB)', saved)):
        row = (f'{one:.4g}', f'{other:.4g}', f'{one / other:.2f}')
        table.add_row(name, *row)
    Console().print(table)
    return 0


if __name__ == '__main__':
    run_tool(main)
