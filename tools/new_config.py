"""Write a config that trains a model on your own data.

DATA is a folder: boxes as COCO, Roboflow, Pascal VOC or YOLO have them, or
pictures with masks, if the base segments. Its splits are taken, or one is
made at random, as lists beside the config; nothing in DATA is changed. The
labels and the config are checked then, and the command that comes next is
printed.

Exit code: 0 without an error of the labels or the config; 1 with one, and the
config is written all the same; 2 if none could be written or checked.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from functools import partial
from shlex import quote

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.utils.cli import (
    ToolParser,
    hide_gpus,
    report_errors,
    run_tool,
    tool_command,
)
from mmext.utils.printing import say
from mmext.utils.quiet_hosts import defer_imports


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = ToolParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add('data', metavar='DATA', help='folder, or data.yaml of YOLO')
    add(
        '--base',
        required=True,
        metavar='CONFIG',
        help='config to inherit, such as '
        'mmext::co_dino/co_dino_5scale_r50_8xb2_1x_coco.py, or a file',
    )
    add('--out', required=True, metavar='FILE', help='config to write, *.py')
    add(
        '--classes',
        nargs='+',
        default=[],
        metavar='NAME',
        help='names in the order of labels (default: those of the data)',
    )
    add(
        '--val-fraction',
        type=float,
        default=0.2,
        metavar='P',
        help='part of the training pictures that validate, where the data '
        'have no such split (default: %(default)s)',
    )
    add(
        '--batch-size',
        type=int,
        default=0,
        metavar='N',
        help='pictures a step and GPU; 0 for that of the base (default)',
    )
    add('--gpus', type=int, default=1, metavar='N', help='default: 1')
    add(
        '--epochs',
        type=int,
        default=0,
        metavar='N',
        help='0 for what suits the number of pictures (default)',
    )
    add(
        '--load-from', default='', metavar='FILE', help='weights to start from'
    )
    add(
        '--ignore-index',
        type=int,
        default=255,
        metavar='N',
        help='value of masks that is of no class (default: 255)',
    )
    add(
        '--fix',
        action='store_true',
        help='where labels have errors, train with copies in which those are '
        'fixed for which that is safe, in a folder beside the config',
    )
    add('--no-check', action='store_true', help='check nothing, only write')
    add('--overwrite', action='store_true', help='replace files of --out')
    return parser


def _check(
    config: str, splits: Sequence[str], environ: Mapping[str, str]
) -> int:
    """Check labels and config; the exit code."""
    from mmext.checks.preflight.run import run_preflight

    return run_preflight(config, splits=tuple(splits), environ=environ)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool.

    Args:
        argv: The arguments, by default those of the command line.

    Returns:
        The exit code.
    """
    parser = make_parser()
    args = vars(parser.parse_args(argv))
    no_check = args.pop('no_check')
    args['num_gpus'] = args.pop('gpus')
    # As the training will see it, with the GPUs that are hidden here, and not
    # the number of processes that the base is named after.
    environ = dict(os.environ)
    if args['num_gpus'] == 1:
        environ |= {'RANK': '0', 'LOCAL_RANK': '0', 'WORLD_SIZE': '1'}
    hide_gpus('cpu')
    defer_imports()
    from mmext.apis import new_config

    made = report_errors(parser, partial(new_config, **args))
    say(made.summary())
    code = 0
    if not no_check:
        check = partial(_check, str(made.path), [*made.data.splits], environ)
        code = report_errors(parser, check)
    command = f'{tool_command("train")} {quote(str(made.path))}'
    if args['num_gpus'] > 1:
        command += f' --nproc {args["num_gpus"]}'
    say(f'\nNext: {"mend the errors, then " * bool(code)}{command}')
    return code


if __name__ == '__main__':
    run_tool(main)
