"""Train the model of a config, in one process or in many.

Ctrl-C and SIGTERM end a training at the next step, with a checkpoint; the
same command with --resume goes on from there. For several machines, see
dist_train.sh and slurm_train.sh.
"""

import argparse
from collections.abc import Sequence
from functools import partial

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.utils.cli import (
    ToolParser,
    add_run_arguments,
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
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='auto|FILE',
        help='go on from a checkpoint; alone or with auto, from the newest '
        'complete one in the work dir, or from the start if there is none',
    )
    parser.add_argument(
        '--amp',
        action='store_true',
        help='mixed precision: bfloat16 on CPUs and on GPUs that compute in '
        'it, float16 on older ones',
    )
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate to the number of images per step: by '
        'the square root for Adam, else linearly',
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; exits with 2 for wrong input, 128 + n for signal n."""
    parser = make_parser()
    args = parser.parse_args(argv)
    start_processes(parser, args, argv)
    hide_gpus(report_errors(parser, find_device, args))
    from mmext.apis.runs import prepare_training, run_training

    prepare = partial(
        prepare_training,
        args.config,
        work_dir=args.work_dir,
        resume=args.resume,
        amp=args.amp,
        auto_scale_lr=args.auto_scale_lr,
        cfg_options=args.cfg_options,
        launcher=args.launcher,
        device=args.device,
        trust_checkpoint=args.trust_checkpoint,
    )
    cfg = report_errors(parser, prepare)
    from mmext.engine import NoResumableCheckpointError, WorkDirInUseError

    try:
        run_training(cfg)
    except (NoResumableCheckpointError, WorkDirInUseError) as error:
        parser.error(str(error))
    return 0


if __name__ == '__main__':
    run_tool(main)
