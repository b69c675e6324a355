"""Draw loss, learning rate and mAP of a training into one PNG picture.

All runs of the work dir are read, so a training that was resumed is one
curve; where two runs logged the same iteration, the newest wins.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.utils.cli import ToolParser, report_errors, run_tool
from mmext.utils.files import check_outputs
from mmext.utils.printing import say


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = ToolParser(description=__doc__)
    parser.add_argument('work_dir', type=Path, help='work dir of a training')
    parser.add_argument(
        '--out',
        type=Path,
        metavar='FILE',
        help='picture to write, *.png (default: WORK_DIR/curves.png)',
    )
    return parser


def draw(args: argparse.Namespace) -> int:
    """Draw the curves, and say where; returns 0."""
    # Not at the top: --help needs no Matplotlib.
    from mmext.apis import plot_log

    out = args.out or args.work_dir / 'curves.png'
    check_outputs({'--out': out})
    log = plot_log(args.work_dir, out)
    for note in log.notes:
        say(f'note: {note}', error=True)
    say(f'losses, learning rate and validation: {out}')
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns 0, wrong input exits with 2."""
    parser = make_parser()
    return report_errors(parser, draw, parser.parse_args(argv))


if __name__ == '__main__':
    run_tool(main)
