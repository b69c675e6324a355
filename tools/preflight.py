"""Check a config before any GPU is booked.

Builds the model on the CPU, trains it for some steps with made-up samples
(nothing is downloaded, no data are needed), and reports what DDP would do with
it: unused parameters and why, parameters that are ready twice, gradients that
would silently differ; what each setting of the model wrapper would do; and
what is wrong in the config itself.

Exit code: 0 without a finding at or above --fail-on, 1 with one, 2 if no step
could be run.
"""

import argparse
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.utils.cli import (
    ConfigOptions,
    ToolParser,
    add_trust_argument,
    hide_gpus,
    report_errors,
    run_tool,
)
from mmext.utils.quiet_hosts import defer_imports


def _seconds(text: str) -> float:
    return 0.0 if text == 'off' else float(text)


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = ToolParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add('config', nargs='?', help='config file of a training')
    add(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='settings to put over the config',
    )
    add(
        '--batches',
        type=lambda text: tuple(text.split(',')),
        metavar='KIND,...',
        help="kinds of made-up batches, or 'real' for those of the config's "
        'data (default: normal,empty,one-class,crowded)',
    )
    add(
        '--steps',
        type=int,
        metavar='N',
        help='of the first kind; the others get one (default: 2)',
    )
    add(
        '--batch-size',
        type=int,
        metavar='N',
        help='of each step; 0 for what suits the model (default)',
    )
    add(
        '--image-size',
        type=int,
        nargs=2,
        metavar=('HEIGHT', 'WIDTH'),
        help='of made-up pictures; by default what suits the model',
    )
    add('--device', default='cpu', help='where the model runs (default: cpu)')
    add(
        '--world',
        type=int,
        metavar='N',
        help='confirm the verdict with N real processes',
    )
    add(
        '--miniature',
        type=_seconds,
        metavar='SECONDS',
        help='how long the runner of the config may train, save, validate, '
        'load and test in small (default: 60); off: its parts are built only',
    )
    add(
        '--rehearse',
        action='store_true',
        help='take a step on a device that stands in for a GPU, with the '
        'batch and the pictures of the training unless told otherwise: '
        'where it would fail or wait, and how much memory it needs',
    )
    add(
        '--gpu-memory',
        type=float,
        metavar='GIB',
        help='the same, and an error if the step does not fit',
    )
    add_trust_argument(parser)
    add(
        '--no-labels',
        action='store_false',
        dest='labels',
        help='do not look at the data',
    )
    add(
        '--store',
        type=Path,
        metavar='FILE',
        help='keeps what was read of the data (default: '
        'work_dirs/label_check.sqlite)',
    )
    add(
        '--list-rules',
        nargs='?',
        const='table',
        choices=('table', 'markdown', 'clinic'),
        help='print all rules, also those of the labels, and end; clinic: by '
        'the errors that trainings end with',
    )
    add(
        '--fail-on',
        choices=('info', 'warning', 'error'),
        help='least severity that makes the exit code 1 (default: error)',
    )
    add(
        '--json',
        type=Path,
        metavar='FILE',
        help='write the report as JSON; - is standard output, and what is '
        'printed goes to standard error then',
    )
    add(
        '--verbose',
        action='store_true',
        help='print what was run and what DDP would do, also where nothing '
        'is wrong with it, and all names of parameters',
    )
    add('--sarif', type=Path, metavar='FILE', help='write it in SARIF 2.1.0')
    add('--html', type=Path, metavar='FILE', help='write it as one page')
    add(
        '--fix',
        type=Path,
        nargs='?',
        const=Path(''),
        metavar='FILE',
        help='write a config that inherits this one and has its findings '
        'fixed, by default beside it as *_fixed.py, and look at that',
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool.

    Args:
        argv: The arguments, by default those of the command line.

    Returns:
        The exit code.
    """
    parser = make_parser()
    # Only what was given; the functions have the defaults.
    options = vars(parser.parse_args(argv))
    form = options.pop('list_rules', None)
    if form is None and 'config' not in options:
        parser.error('a config is needed, or --list-rules')
    # As the training will see it, with the GPUs that are hidden here.
    options['environ'] = dict(os.environ)
    # First: MMEngine asks for the memory of GPUs that are there.
    hide_gpus(options['device'])
    defer_imports()
    from mmext.checks.preflight.run import list_rules, run_preflight

    if form is not None:
        list_rules(form)
        return 0
    if options.pop('trust_checkpoint', False):
        given = options.get('cfg_options', {})
        options['cfg_options'] = {**given, 'trust_checkpoint': True}
    return report_errors(parser, partial(run_preflight, **options))


if __name__ == '__main__':
    run_tool(main)
