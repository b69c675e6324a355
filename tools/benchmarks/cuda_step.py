"""Memory of training steps on a GPU, and where the host waits in them.

For each config: its model with random weights, at the size of picture and the
batch size of its training, on made-up batches as the preflight makes them, in
a process of its own. Of four steps the first is a warm-up.

- weights: MiB of parameters and buffers,
- step: seconds of the second step, from the batch on the host to the updated
  weights,
- allocated: MiB of PyTorch's caching allocator at the peak of the third step,
  the states of the optimizer included; reserved: what it holds for that,
- waits: how often the host waits for the GPU in the fourth step; ``--json``
  has the places.

On a CPU the memory and the waits are those of a rehearsal of the first step,
which needs PyTorch 2.13; reserved is the upper end of its forecast. The other
steps run in float32 there. Nothing is downloaded.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

# Else looking for a GPU would spoil CUDA for processes that are forked.
os.environ.setdefault('PYTORCH_NVML_BASED_CUDA_CHECK', '1')

import torch
from mmengine.registry import DefaultScope
from rich.console import Console
from rich.table import Table

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.checks import rehearse
from mmext.checks.config import read_config
from mmext.checks.findings import ErrorCatcher
from mmext.checks.preflight.batches import make_batches
from mmext.checks.preflight.build import build_for_preflight
from mmext.engine import resolve_device
from mmext.utils.cli import report_errors, run_tool
from mmext.utils.files import atomic_path, check_outputs, prepare_outputs

sys.path.insert(0, str(Path(__file__).parent))
from benchmark_parts import cuda_waits, positive, synchronize
from live_bytes import peak_bytes

MIB = 2**20
COLUMNS = ('weights', 'allocated', 'reserved', 'step', 'waits')


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add('configs', nargs='+', metavar='CONFIG', help='path, or mmdet::...')
    add('--device', default='auto', help='auto, cpu, cuda or cuda:N')
    add('--batch-size', type=positive, help="default: the config's")
    add('--jobs', type=positive, default=1, help='configs at a time')
    add('--json', type=Path, help='write the numbers here, too')
    return parser


def measure(config: str, args: argparse.Namespace) -> dict:
    """The numbers of one config, in this process."""
    device = args.device
    cfg = read_config(config)
    loader = cfg.get('train_dataloader') or {}
    batch_size = args.batch_size or loader.get('batch_size', 2)
    built = build_for_preflight(cfg, device=str(device), size='declared')
    model, wrapper = built.model.train(), built.optim_wrapper
    if wrapper is None:
        raise built.optim_failure or ValueError('config has no optim_wrapper')
    (batches,) = make_batches(
        built, ('normal',), steps=4, batch_size=batch_size
    ).values()
    with DefaultScope.overwrite_default_scope(built.scope):
        on_cuda = device.type == 'cuda'
        # Before the optimizer has states, which are no part of the model.
        rehearsal = None
        if not on_cuda:
            rehearsal = rehearse(model, batches[0], built.cfg.optim_wrapper)
        first, *steps = (
            partial(model.train_step, batch, wrapper) for batch in batches
        )
        first()
        synchronize(device)
        start = time.perf_counter()
        steps[0]()
        synchronize(device)
        seconds = time.perf_counter() - start
        if on_cuda:
            peak = peak_bytes(steps[1], device)
            reserved = torch.cuda.max_memory_reserved(device)
            places = Counter(cuda_waits(steps[2]))
        else:
            peak = rehearsal.memory.peak
            reserved = rehearsal.memory.most
            places = Counter(map(str, rehearsal.reads.elements()))
    tensors = (*model.parameters(), *model.buffers())
    return {
        'size': list(built.recipe.size),
        'batch_size': batch_size,
        'weights': sum(tensor.nbytes for tensor in tensors) / MIB,
        'allocated': peak / MIB,
        'reserved': reserved / MIB,
        'step': seconds,
        'waits': places.total(),
        'places': dict(places.most_common()),
    }


def try_measure(config: str, args: argparse.Namespace) -> dict:
    """The numbers of one config, or its error."""
    row = {'config': config}

    def take(error: Exception) -> None:
        text = f'{type(error).__name__}: {error}'
        row['error'] = ' '.join(text.split())[:300]

    with ErrorCatcher(take):
        row |= measure(config, args)
    return row


def run(args: argparse.Namespace) -> list[dict]:
    """A row for each config; the file is written after each."""
    for host in ('mmdet', 'mmseg'):
        # Once, for all processes to come.
        import_module(f'{host}.models')
        import_module(f'{host}.datasets')
    rows = []
    with get_context('fork').Pool(args.jobs, maxtasksperchild=1) as pool:
        measuring = partial(try_measure, args=args)
        for row in pool.imap_unordered(measuring, args.configs):
            rows.append(row)
            rows.sort(key=lambda row: args.configs.index(row['config']))
            if args.json:
                with atomic_path(args.json) as temporary:
                    Path(temporary).write_text(json.dumps(rows, indent=1))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; 1 if a config could not be measured."""
    parser = make_parser()
    args = parser.parse_args(argv)
    files = {'--json': args.json}
    report_errors(parser, check_outputs, files)
    args.device = report_errors(parser, resolve_device, args.device)
    with prepare_outputs(files):
        rows = run(args)
    table = Table(title='MiB and seconds of a training step')
    for title in ('config', 'size', 'batch', *COLUMNS):
        table.add_column(title, justify='right')
    for row in rows:
        if 'error' in row:
            table.add_row(row['config'], row['error'])
            continue
        table.add_row(
            row['config'],
            'x'.join(map(str, row['size'])),
            str(row['batch_size']),
            *(f'{row[name]:.2f}' for name in COLUMNS),
        )
    Console(width=200).print(table)
    return int(any('error' in row for row in rows))


if __name__ == '__main__':
    run_tool(main)
