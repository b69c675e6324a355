"""Convert checkpoints of the public CO-DETR projects.

Writes the weights with mmext's names. Loading a checkpoint does the same in
memory, so it is only needed for other readers of the file. What the keys of
their configs are called in mmext is listed in docs/co_detr_configs.md.
"""

import argparse
from collections.abc import Sequence

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.utils.cli import ToolParser, convert_file, run_tool
from mmext.utils.printing import say


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = ToolParser(description=__doc__)
    commands = parser.add_subparsers(dest='command', required=True)
    command = commands.add_parser('checkpoint')
    command.add_argument('source', help='public checkpoint')
    command.add_argument('target', help='file to write')
    command.add_argument(
        '--overwrite', action='store_true', help='replace the target'
    )
    command.add_argument(
        '--ema', action='store_true', help='take the averaged weights'
    )
    command.add_argument(
        '--trust-checkpoint',
        '--trust',
        action='store_true',
        help='let the file run code when it is read; only for one from '
        'people you trust',
    )
    return parser


def convert(args: argparse.Namespace) -> None:
    """Write the file, and say what is in it."""
    # Not at the top, here and in the other tools: --help needs no torch.
    from mmext.models.co_dino import convert_checkpoint_file

    count, renamed = convert_checkpoint_file(
        args.source,
        args.target,
        ema=args.ema,
        trust=args.trust_checkpoint,
        overwrite=args.overwrite,
    )
    say(f'Written to {args.target}: {count} tensors, {renamed} renamed')


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit code, 2 for an unwritable target."""
    parser = make_parser()
    return convert_file(parser, parser.parse_args(argv), convert)


if __name__ == '__main__':
    run_tool(main)
