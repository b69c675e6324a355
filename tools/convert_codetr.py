"""Convert files of the public CO-DETR projects.

``checkpoint`` writes the weights with mmext's names. Loading a checkpoint
does the same in memory, so it is only needed for other readers of the file.
``config`` writes the translated model section, for use as a ``_base_``.
"""

import argparse
import sys
from collections.abc import Sequence

import mmext  # noqa: F401  (before anything of mmcv and mmdet)
from mmext.compat import convert_checkpoint_file, convert_config_file


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest='command', required=True)
    for name in ('checkpoint', 'config'):
        command = commands.add_parser(name)
        command.add_argument('source', help=f'public {name} file')
        command.add_argument('target', help='file to write')
        command.add_argument(
            '--overwrite', action='store_true', help='replace the target'
        )
        if name == 'checkpoint':
            command.add_argument(
                '--ema', action='store_true', help='take the averaged weights'
            )
            command.add_argument(
                '--trust',
                action='store_true',
                help='unpickle whatever the file holds, which can run code',
            )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        if args.command == 'config':
            convert_config_file(
                args.source, args.target, overwrite=args.overwrite
            )
            print(f'Written to {args.target}')
            return 0
        count, renamed = convert_checkpoint_file(
            args.source,
            args.target,
            ema=args.ema,
            trust=args.trust,
            overwrite=args.overwrite,
        )
    except (OSError, TypeError, ValueError) as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1
    print(f'Written to {args.target}: {count} tensors, {renamed} renamed')
    return 0


if __name__ == '__main__':
    sys.exit(main())
