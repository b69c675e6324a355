"""Time and memory of what CO-DINO does differently here, forward + backward.

1. One decoder pass for all query groups, against one pass per group: the
   denoising and matching queries, then each co-head, as the public port does.
2. The encoder with activation checkpointing, against without.

Both sides run in this process, in turns, with the same weights and inputs,
and must compute the same. Memory is what the backward pass keeps: on the CPU
the tensors that autograd saved, on CUDA the peak of the allocator.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.engine.launch import resolve_device
from mmext.models.co_dino.denoising import group_attention_mask
from mmext.models.co_dino.transformer import CoDINOTransformer, EncodedImage
from mmext.utils.cli import run_tool

STRIDES = (4, 8, 16, 32, 64)
DENOISING = 100
CO_HEADS = 2
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Contest:
    """Two ways to compute the same loss."""

    name: str
    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]


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
    add('--device', default='auto', help='auto, cpu, cuda or cuda:N')
    add('--image-size', type=positive, default=192, metavar='PIXELS')
    add('--embed-dims', type=positive, default=128, help='multiple of 32')
    add('--layers', type=positive, default=2, help='of encoder and decoder')
    add('--queries', type=positive, default=200, help='matching queries')
    add('--co-queries', type=positive, default=50, help='of each co-head')
    add('--repeats', type=positive, default=5, help='timed runs of each side')
    return parser


def make_transformer(
    args: argparse.Namespace, device: torch.device, *, with_cp: bool
) -> CoDINOTransformer:
    """The same random weights at every call."""
    torch.manual_seed(0)
    stack = {
        'num_layers': args.layers,
        'feedforward_channels': 8 * args.embed_dims,
    }
    transformer = CoDINOTransformer(
        embed_dims=args.embed_dims,
        num_queries=args.queries,
        num_feature_levels=len(STRIDES),
        num_co_heads=CO_HEADS,
        encoder={**stack, 'with_cp': with_cp},
        decoder=stack,
    )
    transformer.init_weights()
    return transformer.to(device)


def encoder_contest(
    args: argparse.Namespace, device: torch.device
) -> tuple[Contest, EncodedImage]:
    """Checkpointed against plain, and the encoder's output."""
    sides = [math.ceil(args.image_size / stride) for stride in STRIDES]
    feats = [
        torch.randn(1, args.embed_dims, n, n, device=device).requires_grad_()
        for n in sides
    ]
    pos = [torch.randn_like(feat) for feat in feats]
    masks = [feat.new_zeros((1, n, n)).bool() for feat, n in zip(feats, sides)]
    runs, encoded = [], None
    for with_cp in (True, False):
        transformer = make_transformer(args, device, with_cp=with_cp)

        def run(transformer: CoDINOTransformer = transformer) -> EncodedImage:
            return transformer.encode(feats, masks, pos, has_padding=False)

        runs.append(lambda run=run: run().memory.square().mean())
    with torch.no_grad():
        encoded = run()
    return Contest('encoder: checkpointed | not', *runs), encoded


def decoder_contest(
    args: argparse.Namespace, device: torch.device, encoded: EncodedImage
) -> Contest:
    """One pass for all groups against one for each."""
    transformer = make_transformer(args, device, with_cp=False)
    branches = nn.ModuleList(
        nn.Linear(args.embed_dims, 4) for _ in range(args.layers)
    ).to(device)
    # As behind an encoder: the backward pass goes on into the memory.
    encoded.memory.requires_grad_()
    main = DENOISING + args.queries
    sizes = [main] + [args.co_queries] * CO_HEADS
    content = torch.randn(1, sum(sizes), args.embed_dims, device=device)
    boxes = torch.rand(1, sum(sizes), 4, device=device)
    main_mask, mask = (
        group_attention_mask(DENOISING, 1, args.queries, others, device)
        for others in ([], sizes[1:])
    )

    def decode(
        content: Tensor, boxes: Tensor, mask: Tensor | None
    ) -> list[Tensor]:
        hidden, decoded = transformer.decode(
            encoded, content, boxes, branches, attn_mask=mask
        )
        return [hidden, *decoded[1:]]

    def loss(*outputs: list[Tensor]) -> Tensor:
        return sum(x.square().sum() for output in outputs for x in output)

    groups = list(zip(content.split(sizes, 1), boxes.split(sizes, 1)))
    masks = [main_mask] + [None] * CO_HEADS
    return Contest(
        f'decoder: one pass | {1 + CO_HEADS} passes',
        lambda: loss(decode(content, boxes, mask)),
        lambda: loss(*(decode(*g, m) for g, m in zip(groups, masks))),
    )


def seconds(run: Callable[[], Tensor], device: torch.device) -> float:
    """Duration of one forward and backward pass."""
    start = time.perf_counter()
    run().backward()
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def kept_bytes(run: Callable[[], Tensor], device: torch.device) -> int:
    """Memory of one forward and backward pass, see the top of this file."""
    if device.type == 'cuda':
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run().backward()
        return torch.cuda.max_memory_allocated(device) - before
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = run()
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in saved
        if not isinstance(tensor, nn.Parameter)
    }
    loss.backward()
    return sum(storages.values())


def measure(
    contest: Contest, device: torch.device, repeats: int
) -> list[tuple[str, str, float, float]]:
    """Rows of the table: what is measured, its unit, ours, theirs."""
    sides = (contest.ours, contest.theirs)
    values = [run().item() for run in sides]
    if not math.isclose(*values, rel_tol=TOLERANCE):
        raise ValueError(
            f'both sides must compute the same, got {values} for '
            f'{contest.name!r}'
        )
    memory = [kept_bytes(run, device) / 2**20 for run in sides]
    times = [[seconds(run, device) for run in sides] for _ in range(repeats)]
    medians = [1000 * median(column) for column in zip(*times)]
    return [
        (contest.name, 'ms', *medians),
        (contest.name, 'MiB', *memory),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        if args.embed_dims % 32:
            raise ValueError(
                f'embed_dims must be a multiple of 32, got {args.embed_dims}'
            )
        device = resolve_device(args.device)
        encoder, encoded = encoder_contest(args, device)
        contests = [decoder_contest(args, device, encoded), encoder]
        rows = [r for c in contests for r in measure(c, device, args.repeats)]
    except ValueError as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1
    table = Table(
        title=f'CO-DINO on {device}: {args.image_size} px, '
        f'{args.layers} layers, {args.embed_dims} dims, medians of '
        f'{args.repeats}'
    )
    table.add_column('ours | theirs')
    for column in ('unit', 'ours', 'theirs', 'ours / theirs'):
        table.add_column(column, justify='right')
    for name, unit, ours, theirs in rows:
        ratio = f'{ours / theirs:.2f}'
        table.add_row(name, unit, f'{ours:.1f}', f'{theirs:.1f}', ratio)
    Console().print(table)
    return 0


if __name__ == '__main__':
    run_tool(main)
