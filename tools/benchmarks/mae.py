"""A step of MAE pre-training: ours beside mmpretrain's and Lightly's.

Each side runs in a process of its own, with the Python that is named for it,
so that they need not fit into one environment: mmpretrain 1.2 or Lightly 1.5
with timm. They take steps in turns: forward, backward, AdamW, on the same
pictures of noise. All have the encoder that is asked for, a decoder of 8
layers of 512 channels, and a loss of normalised pixels; Lightly's published
loop has no normalisation. Memory is the peak of the tensors alive on a CPU,
of the allocator on CUDA.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

# Torch and all else is loaded by the workers: not each side has all of it.
# name -> width, layers, heads
SIZES = {
    'mini': (96, 6, 3),
    'tiny': (192, 12, 3),
    'small': (384, 12, 6),
    'base': (768, 12, 12),
    'large': (1024, 24, 16),
}
DECODER = {
    'decoder_embed_dim': 512,
    'decoder_depth': 8,
    'decoder_num_heads': 16,
}
SIDES = ('ours', 'mmpretrain', 'lightly')


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f'must be at least 1, got {text}')
    return number


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add('--mmpretrain', metavar='PYTHON', help='one that has mmpretrain')
    add('--lightly', metavar='PYTHON', help='one that has lightly and timm')
    add('--arch', choices=tuple(SIZES), default='tiny', help='encoder')
    add('--image-size', type=positive, default=224, metavar='PIXELS')
    add('--patch-size', type=positive, default=16, metavar='PIXELS')
    add('--batch-size', type=positive, default=8)
    add('--device', default='cpu', help='cpu, cuda or cuda:N')
    add('--bf16', action='store_true', help='autocast to bfloat16')
    add(
        '--cpu-time',
        action='store_true',
        help='time of the processor rather than of the clock, for machines '
        'that others use, too',
    )
    add('--repeats', type=positive, default=5, help='timed steps of a side')
    add('--worker', choices=SIDES, help=argparse.SUPPRESS)
    return parser


# Sides: each gives a module and a function images -> loss. -----------------


def build_ours(args: argparse.Namespace) -> tuple:
    """The side of mmext."""
    from mmext.models import MAE

    width, *_ = SIZES[args.arch]
    size = {'img_size': args.image_size, 'patch_size': args.patch_size}
    model = MAE(
        {'type': 'MAEViT', 'arch': args.arch, **size},
        {'type': 'MAEDecoder', 'embed_dim': width, **size, **DECODER},
        {'type': 'MAEHead', 'patch_size': args.patch_size},
    )
    return model, lambda images: model(images, mode='loss')['loss']


def build_mmpretrain(args: argparse.Namespace) -> tuple:
    """The side of mmpretrain."""
    import mmpretrain.models  # noqa: F401
    from mmengine.registry import DefaultScope
    from mmpretrain.registry import MODELS

    width, layers, heads = SIZES[args.arch]
    arch = {
        'embed_dims': width,
        'num_layers': layers,
        'num_heads': heads,
        'feedforward_channels': 4 * width,
    }
    config = {
        'type': 'MAE',
        'backbone': {
            'type': 'MAEViT',
            'arch': arch,
            'img_size': args.image_size,
            'patch_size': args.patch_size,
        },
        'neck': {
            'type': 'MAEPretrainDecoder',
            'num_patches': (args.image_size // args.patch_size) ** 2,
            'patch_size': args.patch_size,
            'embed_dim': width,
            **DECODER,
        },
        'head': {
            'type': 'MAEPretrainHead',
            'norm_pix': True,
            'patch_size': args.patch_size,
            'loss': {'type': 'PixelReconstructionLoss', 'criterion': 'L2'},
        },
    }
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(config)
    model.init_weights()
    return model, lambda images: model.loss(images, None)['loss']


def build_lightly(args: argparse.Namespace) -> tuple:
    """The side of Lightly, by the functions that its documentation shows."""
    from lightly.models import utils
    from lightly.models.modules import (
        MAEDecoderTIMM,
        MaskedVisionTransformerTIMM,
    )
    from timm.models.vision_transformer import VisionTransformer
    from torch import nn

    width, layers, heads = SIZES[args.arch]
    vit = VisionTransformer(
        img_size=args.image_size,
        patch_size=args.patch_size,
        embed_dim=width,
        depth=layers,
        num_heads=heads,
        num_classes=0,
    )
    backbone = MaskedVisionTransformerTIMM(vit=vit)
    decoder = MAEDecoderTIMM(
        num_patches=vit.patch_embed.num_patches,
        patch_size=args.patch_size,
        embed_dim=width,
        mlp_ratio=4.0,
        proj_drop_rate=0.0,
        attn_drop_rate=0.0,
        **DECODER,
    )
    criterion = nn.MSELoss()

    def loss(images: Any) -> Any:
        size = (len(images), backbone.sequence_length)
        keep, hidden = utils.random_token_mask(
            size=size, mask_ratio=0.75, device=images.device
        )
        latent = backbone.encode(images=images, idx_keep=keep)
        seen = decoder.embed(latent)
        tokens = utils.repeat_token(decoder.mask_token, size)
        tokens = utils.set_at_index(tokens, keep, seen.type_as(tokens))
        decoded = decoder.decode(tokens)
        predicted = decoder.predict(utils.get_at_index(decoded, hidden))
        patches = utils.patchify(images, args.patch_size)
        target = utils.get_at_index(patches, hidden - 1)
        return criterion(predicted, target)

    return nn.ModuleList([backbone, decoder]), loss


BUILDERS: dict[str, Callable] = {
    'ours': build_ours,
    'mmpretrain': build_mmpretrain,
    'lightly': build_lightly,
}


# The worker ----------------------------------------------------------------


def work(args: argparse.Namespace) -> None:
    """Take a step for each line that comes, and print what it took.

    Of ``time`` the milliseconds, of ``memory`` the MiB.
    """
    import torch
    from live_bytes import peak_bytes

    device = torch.device(args.device)
    torch.manual_seed(0)
    images = torch.randn(
        args.batch_size, 3, args.image_size, args.image_size, device=device
    )
    model, loss_of = BUILDERS[args.worker](args)
    model.to(device).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(
            device.type, dtype=torch.bfloat16, enabled=args.bf16
        ):
            loss = loss_of(images)
        loss.backward()
        optimizer.step()
        if device.type == 'cuda':
            torch.cuda.synchronize(device)

    clock = time.process_time if args.cpu_time else time.perf_counter
    step()
    print('ready', flush=True)
    for line in sys.stdin:
        if line.strip() == 'time':
            start = clock()
            step()
            number = 1e3 * (clock() - start)
        else:
            number = peak_bytes(step, device) / 2**20
        print(number, flush=True)


class Worker:
    """A side in a process of its own."""

    def __init__(self, side: str, python: str, argv: Sequence[str]) -> None:
        self.side = side
        self.process = subprocess.Popen(
            [python, str(Path(__file__).resolve()), *argv, '--worker', side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # Hosts print lines of their own while they are imported.
        while self._line() != 'ready':
            pass

    def _line(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            raise ValueError(
                f'{self.side} must run, got an error, see above; name '
                'another Python'
            )
        return line.strip()

    def ask(self, what: str) -> float:
        """Take a step, and give its ``'time'`` or its ``'memory'``."""
        self.process.stdin.write(f'{what}\n')
        self.process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def compare(args: argparse.Namespace, argv: Sequence[str]) -> list[list[str]]:
    """Rows: what, unit, ours, theirs, ours divided by theirs."""
    pythons = {
        'ours': sys.executable,
        'mmpretrain': args.mmpretrain,
        'lightly': args.lightly,
    }
    workers: list[Worker] = []
    try:
        for side, python in pythons.items():
            if python:
                workers.append(Worker(side, python, argv))
        times: dict[str, list[float]] = {w.side: [] for w in workers}
        for _ in range(args.repeats):
            for worker in workers:
                times[worker.side].append(worker.ask('time'))
        results = {side: [median(all_)] for side, all_ in times.items()}
        for worker in workers:
            results[worker.side].append(worker.ask('memory'))
    finally:
        for worker in workers:
            worker.close()
    ours = results.pop('ours')
    if not results:
        return [
            ['step', unit, f'{number:.1f}', '-', '-']
            for unit, number in zip(('ms', 'MiB'), ours)
        ]
    return [
        [
            side,
            unit,
            f'{mine:.1f}',
            f'{other:.1f}',
            f'{mine / other if other else 0:.2f}',
        ]
        for side, theirs in results.items()
        for unit, mine, other in zip(('ms', 'MiB'), ours, theirs)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; 1 if a side does not run."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = make_parser().parse_args(argv)
    if args.worker:
        work(args)
        return 0
    from rich.console import Console
    from rich.table import Table

    try:
        rows = compare(args, argv)
    except (OSError, ValueError) as error:
        print(f'mae.py: error: {error}', file=sys.stderr)
        return 1
    table = Table(
        title=f'ViT-{args.arch}/{args.patch_size} at {args.image_size}, '
        f'batch {args.batch_size}, {args.device}'
    )
    for title in ('beside', 'unit', 'ours', 'theirs', 'ratio'):
        table.add_column(title, justify='right')
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    return 0


if __name__ == '__main__':
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
