"""Evaluate a checkpoint on the test data of a config.

For several machines, see dist_test.sh.
"""

import argparse
from collections.abc import Sequence
from functools import partial

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.utils.cli import (
    ToolParser,
    add_run_arguments,
    add_view_arguments,
    find_device,
    hide_gpus,
    report_errors,
    run_tool,
    start_processes,
)


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = ToolParser(description=__doc__)
    add_run_arguments(parser)
    parser.add_argument('checkpoint', help='weights, *.pth')
    parser.add_argument(
        '--out',
        metavar='FILE',
        help='write all predictions into this file, *.pkl',
    )
    add_view_arguments(parser)
    parser.add_argument(
        '--report',
        metavar='DIR',
        help='write report.html and report.json into this folder: metrics of '
        'each class, curves, confusion, calibration, the worst pictures',
    )
    parser.add_argument(
        '--score-thr',
        type=float,
        default=0.3,
        metavar='P',
        help='of the report: boxes of a lower score count as not found '
        '(default: %(default)s)',
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns 0, wrong input exits with 2."""
    parser = make_parser()
    args = parser.parse_args(argv)
    start_processes(parser, args, argv)
    hide_gpus(report_errors(parser, find_device, args))
    if not 0 <= args.score_thr <= 1:
        parser.error(f'--score-thr must be in [0, 1], got {args.score_thr}')
    from mmext.apis.runs import prepare_test, run_test

    prepare = partial(
        prepare_test,
        args.config,
        args.checkpoint,
        work_dir=args.work_dir,
        out=args.out,
        report=args.report,
        tta=args.tta,
        tile=args.tile,
        cfg_options=args.cfg_options,
        launcher=args.launcher,
        device=args.device,
        trust_checkpoint=args.trust_checkpoint,
    )
    cfg = report_errors(parser, prepare)
    from mmext.engine import UnusableCheckpointError

    run = partial(
        run_test,
        cfg,
        out=args.out,
        report=args.report,
        score_thr=args.score_thr,
    )
    report_errors(parser, run, errors=(UnusableCheckpointError,))
    return 0


if __name__ == '__main__':
    run_tool(main)
