"""A training step and a prediction of CO-DINO, beside the public port's.

``--reference`` is the folder ``projects/CO-DETR`` of a checkout of
MMDetection 3.3; where it says ``.cuda()``, that is left out on a CPU. Both
sides have the same weights, image and boxes, the operators that mmcv has
here, and must give the same loss: for that comparison, nothing is random.
Each side runs in a process of its own, and they take turns. ``ours bf16`` is
our side under autocast to bfloat16; the port is always float32. On a CPU our
sides keep freed memory, as mmext's runner does.

``saved`` are the bytes that autograd keeps for the backward pass, ``RSS``
the most that the process ever had, ``allocated`` the peak of a step: of CUDA's
allocator, or of the tensors that the step makes on a CPU.
"""

import argparse
import multiprocessing
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from rich.console import Console
from rich.table import Table
from torch import Tensor

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.engine import keep_freed_memory, resolve_device
from mmext.utils.cli import run_tool

sys.path.insert(0, str(Path(__file__).parent))
from benchmark_parts import positive, random_batch, synchronize
from live_bytes import SavedBytes, peak_bytes

SIDES = ('ours', 'ours bf16', 'port')
CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
CONFIG = CONFIGS / 'co_dino/co_dino_5scale_r50_8xb2_1x_coco.py'
TOLERANCE = 1e-4
# name -> unit
MEASURES = {
    'step': 's',
    'prediction': 's',
    'optimizer': 'ms',
    'saved': 'GiB',
    'allocated': 'GiB',
    'RSS': 'GiB',
}


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add('--reference', type=Path, metavar='PATH', help='projects/CO-DETR')
    add('--config', type=Path, default=CONFIG, help='has one name in both')
    add('--device', default='auto', help='auto, cpu, cuda or cuda:N')
    add('--height', type=positive, default=512, metavar='PIXELS')
    add('--width', type=positive, default=512, metavar='PIXELS')
    add('--batch-size', type=positive, default=1)
    add('--boxes', type=positive, default=10, help='of each image')
    add(
        '--checkpoints',
        action='store_true',
        help="as the configs say; the port's need the package fairscale",
    )
    add('--sides', nargs='+', choices=SIDES, default=SIDES)
    add('--measures', nargs='+', choices=MEASURES, default=tuple(MEASURES))
    add('--repeats', type=positive, default=3, help='timed runs of each side')
    add(
        '--cpu-time',
        action='store_true',
        help='time of the processor rather than of the clock, for machines '
        'that others use, too',
    )
    return parser


class _WithoutCuda(SourceFileLoader):
    """Loads the port's modules for a machine without a GPU."""

    def get_data(self, path: str) -> bytes:
        data = super().get_data(path)
        return data.replace(b'.cuda()', b'')

    def set_data(self, *args: object, **kwargs: object) -> None:
        """Keep no compiled file: it would hold another program."""


class _PortFinder(MetaPathFinder):
    """Finds the package ``codetr`` in a checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(self, name: str, *_: object) -> Any:
        package, _, module = name.partition('.')
        if package != 'codetr':
            return None
        path = self.root / package / f'{module or "__init__"}.py'
        return spec_from_file_location(
            name,
            path,
            loader=_WithoutCuda(name, str(path)),
            submodule_search_locations=None if module else [str(path.parent)],
        )


def import_port(root: Path, device: torch.device) -> None:
    """Register the port's modules."""
    sys.dont_write_bytecode = True
    if device.type == 'cpu':
        sys.meta_path.insert(0, _PortFinder(root))
    else:
        sys.path.insert(0, str(root))
    import codetr  # noqa: F401


def make_side(side: str, args: argparse.Namespace) -> tuple:
    """Model and optimizer wrapper of a side."""
    device = resolve_device(args.device)
    if side == 'port':
        import_port(args.reference, device)
        path = args.reference / 'configs/codino' / args.config.name
        cfg = Config.fromfile(path, import_custom_modules=False)
    else:
        cfg = Config.fromfile(args.config)
    cfg.model.backbone.init_cfg = None
    if not args.checkpoints:
        encoder = cfg.model.query_head.transformer.encoder
        encoder.with_cp = -1 if side == 'port' else False
        cfg.model.backbone.with_cp = False
    init_default_scope('mmdet')
    torch.manual_seed(0)
    from mmdet.registry import MODELS

    # Else a line for each parameter.
    MMLogger.get_current_instance().setLevel('ERROR')
    model = MODELS.build(cfg.model)
    if side != 'port':
        model.init_weights()
    model.to(device)
    return model, build_optim_wrapper(model, cfg.optim_wrapper)


def make_batch(args: argparse.Namespace, num_classes: int) -> dict:
    """Images of noise with boxes."""
    size = min(args.height, args.width)
    batches = [
        random_batch(size, args.boxes, num_classes, seed)
        for seed in range(args.batch_size)
    ]
    shape = args.height, args.width
    noise = torch.Generator().manual_seed(0)
    batch: dict = {'inputs': [], 'data_samples': []}
    for item in batches:
        (sample,) = item['data_samples']
        sample.set_metainfo({'img_shape': shape, 'ori_shape': shape})
        image = torch.randint(0, 256, (3, *shape), generator=noise)
        batch['inputs'].append(image.to(torch.uint8))
        batch['data_samples'].append(sample)
    return batch


@contextmanager
def nothing_random() -> Iterator[None]:
    """Denoising and sampling draw constants: both sides draw the same."""

    def order(count: int, **kwargs: Any) -> Tensor:
        return torch.arange(count, **kwargs)

    with (
        mock.patch('torch.randperm', order),
        mock.patch(
            'torch.rand_like',
            lambda x, **more: torch.full_like(x, 0.5, **more),
        ),
        mock.patch(
            'torch.randint_like', lambda x, *_, **__: torch.zeros_like(x)
        ),
    ):
        yield


class Side:
    """One program, in its own process."""

    def __init__(self, side: str, args: argparse.Namespace) -> None:
        self.device = resolve_device(args.device)
        if side != 'port' and self.device.type == 'cpu':
            keep_freed_memory()
        self.model, self.optim = make_side(side, args)
        self.batch = make_batch(args, self.model.query_head.num_classes)
        self.clock = time.process_time if args.cpu_time else time.perf_counter
        self.autocast = torch.autocast(
            self.device.type, torch.bfloat16, enabled=side == 'ours bf16'
        )

    def weights(self, path: str, save: bool) -> float:
        """Write the weights, or take them."""
        if save:
            torch.save(self.model.state_dict(), path)
        else:
            self.model.load_state_dict(torch.load(path), strict=True)
        return 0.0

    def loss(self) -> Tensor:
        """The sum of all losses."""
        self.model.train()
        torch.manual_seed(1)
        with self.autocast:
            data = self.model.data_preprocessor(self.batch, True)
            losses = self.model(**data, mode='loss')
        return self.model.parse_losses(losses)[0]

    def constant_loss(self) -> float:
        """The same with nothing random."""
        with nothing_random(), torch.no_grad():
            return self.loss().item()

    def step(self) -> None:
        """Forward and backward."""
        self.optim.zero_grad()
        self.loss().backward()

    def prediction(self) -> None:
        """Detections of the images."""
        self.model.eval()
        with torch.no_grad(), self.autocast:
            self.model.test_step(self.batch)

    def optimizer(self) -> None:
        """A step of the optimizer alone; its gradients are there."""
        self.optim.step()

    def seconds(self, what: str) -> float:
        """Duration of one run."""
        run: Callable[[], None] = getattr(self, what)
        synchronize(self.device)
        start = self.clock()
        run()
        synchronize(self.device)
        return self.clock() - start

    def saved(self) -> float:
        """GiB that autograd keeps."""
        counter = SavedBytes(self.model)
        with counter.counting():
            self.step()
        return counter.peak / 2**30

    def allocated(self) -> float:
        """GiB in use at most in a step."""
        return peak_bytes(self.step, self.device) / 2**30

    def rss(self) -> float:
        """GiB of this process at most."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 2**30 * (1 if sys.platform == 'darwin' else 1024)


def serve(side: str, args: argparse.Namespace, pipe: Any) -> None:
    """Answer what the parent asks, until it asks for nothing."""
    torch.set_num_threads(args.threads)
    program = Side(side, args)
    for name, values in iter(pipe.recv, None):
        pipe.send(getattr(program, name)(*values))


class Process:
    """A side, as the parent sees it."""

    def __init__(self, side: str, args: argparse.Namespace) -> None:
        context = multiprocessing.get_context('spawn')
        self.side = side
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(side, args, theirs), daemon=True
        )
        self.process.start()
        theirs.close()

    def ask(self, name: str, *values: object) -> float:
        """Call a method of the side."""
        try:
            self.pipe.send((name, values))
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            how = 'got an error, see above'
            if self.process.exitcode == -signal.SIGKILL:
                how = 'but was killed, as for lack of memory; try fewer sides'
            raise ValueError(f'{self.side} must run, {how}') from None

    def close(self) -> None:
        """End the process."""
        if self.process.is_alive():
            self.pipe.send(None)
        self.process.join()


def same_weights(sides: Sequence[Process]) -> None:
    """Give all sides the weights of the first."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / 'weights.pth')
        for side in sides:
            side.ask('weights', path, side is sides[0])


def check_losses(sides: Sequence[Process]) -> None:
    """All float32 sides must have the same loss."""
    losses = {side.side: side.ask('constant_loss') for side in sides}
    print(*(f'loss of {key}: {value:.5f}' for key, value in losses.items()))
    exact = [value for key, value in losses.items() if 'bf16' not in key]
    if exact and max(exact) - min(exact) > TOLERANCE * max(exact):
        raise ValueError(f'both sides must compute the same, got {losses}')


def measure(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Per measure the median of each side."""
    wanted = [
        side
        for side in SIDES
        if side in args.sides and (side != 'port' or args.reference)
    ]
    sides: list[Process] = []
    results: dict[str, dict[str, float]] = {}
    try:
        for name in wanted:
            sides.append(Process(name, args))
        same_weights(sides)
        check_losses(sides)
        for what in args.measures:
            if what in ('saved', 'allocated', 'RSS'):
                name = what.lower()
                results[what] = {side.side: side.ask(name) for side in sides}
                continue
            for side in sides:  # the first run makes caches and states
                if what == 'optimizer':
                    side.ask('seconds', 'step')
                side.ask('seconds', what)
            times: dict[str, list[float]] = {side.side: [] for side in sides}
            for _ in range(args.repeats):
                for side in sides:
                    times[side.side].append(side.ask('seconds', what))
            scale = 1000 if MEASURES[what] == 'ms' else 1
            results[what] = {k: scale * median(v) for k, v in times.items()}
    finally:
        for side in sides:
            side.close()
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; 1 if a side does not run, or they differ."""
    parser = make_parser()
    args = parser.parse_args(argv)
    args.threads = torch.get_num_threads()
    if args.checkpoints and args.reference and not find_spec('fairscale'):
        parser.error(
            '--checkpoints needs the package fairscale beside --reference, '
            'without which the port keeps everything; install it with pip '
            'install --no-deps --no-build-isolation fairscale'
        )
    try:
        results = measure(args)
    except (OSError, ValueError) as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1
    table = Table(
        title=f'{args.config.stem}, {args.height} x {args.width}, '
        f'batch {args.batch_size}, {args.threads} threads'
    )
    columns = list(next(iter(results.values())))
    for title in ('', 'unit', *columns):
        table.add_column(title, justify='right')
    ratios = [side for side in columns if side != 'port' and 'port' in columns]
    for side in ratios:
        table.add_column(f'{side} / port', justify='right')
    for what, row in results.items():
        table.add_row(
            what,
            MEASURES[what],
            *(f'{row[side]:.2f}' for side in columns),
            *(f'{row[side] / row["port"]:.2f}' for side in ratios),
        )
    Console().print(table)
    return 0


if __name__ == '__main__':
    run_tool(main)
