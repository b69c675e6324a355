"""Train the model of a config, in one process or in many.

Ctrl-C and SIGTERM end a training at the next step, with a checkpoint; the
same command with --resume goes on from there. A config with errors that show
before anything is built is not trained. For several machines, see
dist_train.sh and slurm_train.sh.
"""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from shlex import join

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.utils.cli import (
    ToolParser,
    add_run_arguments,
    find_device,
    hide_gpus,
    report_errors,
    run_tool,
    start_processes,
    tool_command,
)
from mmext.utils.printing import say


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
    parser.add_argument(
        '--no-preflight',
        action='store_true',
        help='begin also with errors of the config that the preflight finds '
        'before anything is built',
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; 2 for wrong input or config, 128 + n for signal n."""
    parser = make_parser()
    args = parser.parse_args(argv)
    start_processes(parser, args, argv)
    hide_gpus(report_errors(parser, find_device, args))
    from mmext.apis.runs import (
        has_errors,
        prepare_training,
        run_training,
        trained_checkpoint,
    )

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
    if not args.no_preflight and has_errors(cfg):
        return 2
    from mmext.engine import UnusableCheckpointError, WorkDirError

    started = time.time()
    errors = UnusableCheckpointError, WorkDirError
    report_errors(parser, run_training, cfg, errors=errors)
    checkpoint = trained_checkpoint(cfg, started)
    if checkpoint is not None:
        words = [str(checkpoint), str(checkpoint.parent / 'shared')]
        if cfg.get('test_dataloader') is None:
            words.append('--no-test')
        say(f'\nNext: {tool_command("share")} {join(words)}')
    return 0


if __name__ == '__main__':
    run_tool(main)
