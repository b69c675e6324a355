"""Memory of training steps on a GPU, and where the host waits in them.

For each config: its model with random weights, at the size of picture and the
batch size of its training, on made-up batches as the preflight makes them.
Three steps are taken; the third is measured. Each config runs in a process of
its own.

- weights: parameters and buffers,
- allocated, reserved: the peaks of PyTorch's caching allocator in the third
  step, the states of the optimizer included,
- step: seconds from the batch on the host to the updated weights,
- waits: operations that made the host wait for the GPU, of forward, backward
  and optimizer, and in all; ``--json`` has the place of each.

AMP wrappers run as float32 unless ``--amp`` is given. Nothing is downloaded.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

# Else looking for a GPU would spoil CUDA for processes that are forked.
os.environ.setdefault('PYTORCH_NVML_BASED_CUDA_CHECK', '1')

import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from rich.console import Console
from rich.table import Table

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.checks.findings import ErrorCatcher
from mmext.checks.preflight.batches import make_batches
from mmext.checks.preflight.build import build_for_preflight
from mmext.utils.cli import run_tool
from mmext.utils.files import atomic_path

sys.path.insert(0, str(Path(__file__).parent))
from benchmark_parts import positive

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
    add('--device', default='cuda', help='cuda or cuda:N')
    add('--batch-size', type=positive, help="default: the config's")
    add('--amp', action='store_true', help='autocast to bfloat16')
    add('--jobs', type=positive, default=1, help='configs at a time')
    add('--json', type=Path, help='write the numbers here, too')
    return parser


def take_step(built, batch: dict, device: torch.device, amp: bool) -> None:
    """Forward, backward and the optimizer's step."""
    model, wrapper = built.model, built.optim_wrapper
    with torch.autocast(device.type, torch.bfloat16, enabled=amp):
        data = model.data_preprocessor(batch, True)
        losses = (
            model(**data, mode='loss')
            if isinstance(data, dict)
            else model(*data, mode='loss')
        )
    loss, _ = model.parse_losses(losses)
    wrapper.update_params(loss)


def measure(config: str, args: argparse.Namespace) -> dict:
    """The numbers of one config, in this process."""
    device = torch.device(args.device)
    cfg = Config.fromfile(_path_of(config) if '::' in config else config)
    loader = cfg.get('train_dataloader') or {}
    batch_size = args.batch_size or loader.get('batch_size', 2)
    built = build_for_preflight(cfg, device=args.device, size='declared')
    if built.optim_wrapper is None:
        raise built.optim_failure or ValueError('config has no optim_wrapper')
    built.model.train()
    (batches,) = make_batches(
        built, ('normal',), steps=3, batch_size=batch_size
    ).values()
    weights = sum(
        tensor.nbytes
        for tensor in (*built.model.parameters(), *built.model.buffers())
    )
    row = {
        'size': list(built.recipe.size),
        'batch_size': batch_size,
        'weights': weights / MIB,
    }
    with DefaultScope.overwrite_default_scope(built.scope):
        for batch in batches[:2]:
            take_step(built, batch, device, args.amp)
        if device.type == 'cuda':
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        start = time.perf_counter()
        take_step(built, batches[2], device, args.amp)
        if device.type == 'cuda':
            torch.cuda.synchronize(device)
            row['step'] = time.perf_counter() - start
            row['allocated'] = torch.cuda.max_memory_allocated(device) / MIB
            row['reserved'] = torch.cuda.max_memory_reserved(device) / MIB
            row['places'] = waits_of(built, batches[1], device, args.amp)
            row['waits'] = sum(row['places'].values())
    return row


def waits_of(
    built, batch: dict, device: torch.device, amp: bool
) -> dict[str, int]:
    """Where the host waits in a step, with how often it does there."""
    torch.cuda.set_sync_debug_mode('warn')
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            take_step(built, batch, device, amp)
    finally:
        torch.cuda.set_sync_debug_mode('default')
    root = str(Path(__file__).resolve().parents[2]) + os.sep
    places = Counter(
        f'{item.filename.rpartition("site-packages" + os.sep)[2]}'
        f':{item.lineno}'.removeprefix(root)
        for item in caught
        if 'synchroniz' in str(item.message)
    )
    return dict(places.most_common())


def _path_of(name: str) -> Path:
    """The file of a config that is named by its package."""
    package, _, relative = name.partition('::')
    root = Path(import_module(package).__file__).parent
    return root / '.mim/configs' / f'{relative.removesuffix(".py")}.py'


def try_measure(config: str, args: argparse.Namespace) -> dict:
    """The numbers of one config, or its error."""
    errors: list[Exception] = []
    row = {'config': config}
    with ErrorCatcher(errors.append):
        row |= measure(config, args)
    for error in errors:
        text = f'{type(error).__name__}: {error}'
        row['error'] = ' '.join(text.split())[:300]
    return row


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; 1 if a config could not be measured."""
    args = make_parser().parse_args(argv)
    for host in ('mmdet', 'mmseg'):
        # Once, for all processes to come.
        import_module(f'{host}.models')
        import_module(f'{host}.datasets')
    rows = []
    with get_context('fork').Pool(args.jobs, maxtasksperchild=1) as pool:
        for row in pool.imap(
            partial(try_measure, args=args), args.configs, chunksize=1
        ):
            rows.append(row)
            if args.json:
                with atomic_path(args.json) as temporary:
                    text = '\n'.join(json.dumps(row) for row in rows)
                    Path(temporary).write_text(text + '\n')
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
            *(f'{row[k]:.2f}' if k in row else '' for k in COLUMNS),
        )
    Console(width=200).print(table)
    return int(any('error' in row for row in rows))


if __name__ == '__main__':
    run_tool(main)
