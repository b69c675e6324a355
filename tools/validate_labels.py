"""Find label errors of a data set before its training.

From a config, the data sets are built as the training would build them, and
their files are checked against what the model expects of them. Without a
config, label maps in a folder (--masks), an annotation file in COCO's format
(--coco), a folder in Pascal VOC's (--voc) or in YOLO's (--yolo), or a folder
in the layout of the pre-processed NYUv2 with depth and normals (--nyuv2) is
checked.

Exit code: 0 without a finding at or above --fail-on, 1 with one, 2 if the
check could not run.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.utils.cli import ConfigOptions, ToolParser, report_errors, run_tool


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = ToolParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # Defaults are those of check_labels.
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add('config', nargs='?', help='config file of the training')
    add(
        '--split',
        nargs='+',
        choices=('train', 'val', 'test'),
        help='splits of the config to check (default: train val)',
    )
    add(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        default={},
        metavar='KEY=VALUE',
        help='settings to put over the config, such as data_root=FOLDER',
    )
    _add_bare(parser)
    _add_output(parser)
    _add_running(parser)
    return parser


def _add_bare(parser: argparse.ArgumentParser) -> None:
    """What takes the place of a config."""
    add = parser.add_argument
    add_path = partial(add, type=Path)
    add_path(
        '--masks',
        metavar='DIR',
        help='label maps to check without a config; beside --coco, the PNG '
        'files of a panoptic one (default: the folder of its name)',
    )
    add_path('--coco', metavar='FILE', help="annotation file in COCO's format")
    add_path(
        '--voc',
        metavar='DIR',
        help='folder with Annotations, JPEGImages and ImageSets/Main, or of '
        'XML files',
    )
    add_path(
        '--yolo',
        metavar='DIR',
        help='folder with data.yaml, or that file, or a folder with images, '
        'labels and --classes or classes.txt',
    )
    add_path(
        '--nyuv2',
        metavar='DIR',
        help='folder with {train,val}/{image,label,depth,normal}/*.npy; it '
        'may also take the place of the config',
    )
    add_path(
        '--images',
        metavar='DIR',
        help='the images of --masks, --coco or --voc',
    )
    add(
        '--mask-suffix',
        metavar='TEXT',
        help='end of the names of --masks that --images lack, such as '
        '_gtFine_labelTrainIds.png',
    )
    add('--image-suffix', metavar='TEXT', help='the same of images')
    add('--num-classes', type=int, metavar='N', help='of --masks')
    add(
        '--classes',
        nargs='+',
        metavar='NAME',
        help='names of the classes in the order of labels; without, --coco '
        'and --voc have those of the files',
    )
    add('--ignore-index', type=int, metavar='N', help='of --masks')
    add(
        '--reduce-zero-label',
        action='store_true',
        help='0 of --masks is no class and 1 the first one, as in ADE20K',
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    """What to look for, and what to write."""
    add = parser.add_argument
    add_path = partial(add, type=Path)
    add(
        '--select',
        nargs='+',
        action='extend',
        metavar='RULE',
        help='only these; may be given again',
    )
    add(
        '--ignore',
        nargs='+',
        action='extend',
        metavar='RULE',
        help='not these; may be given again',
    )
    add('--list-rules', action='store_true', help='print all rules, and end')
    add(
        '--fail-on',
        choices=('info', 'warning', 'error'),
        help='least severity that makes the exit code 1 (default: error)',
    )
    add_path(
        '--json',
        metavar='FILE',
        help='write the report as JSON; - is standard output, for this and '
        'the other reports, and what is printed goes to standard error then',
    )
    add_path('--sarif', metavar='FILE', help='write it in SARIF 2.1.0')
    add_path(
        '--html', metavar='FILE', help='write it as one page, with pictures'
    )
    for form, name in (('jsonl', 'JSON Lines'), ('csv', 'CSV')):
        add_path(
            f'--{form}',
            metavar='FILE',
            help='write every location of every finding, one a line, as '
            f'{name}',
        )
    add(
        '--all',
        action='store_true',
        help='name every location of a finding, not only five, in what is '
        'printed and in --json and --sarif; code scanning takes up to 25,000',
    )
    add(
        '--verbose',
        action='store_true',
        help='print how much there is of each class',
    )
    add_path(
        '--fix',
        metavar='DIR',
        help='write label files with safe fixes into a new folder, with a log '
        'of each change; nothing is changed in place',
    )
    add(
        '--class-weights',
        metavar='KIND',
        help='print class weights of the training split, ready to paste: '
        'inverse, median_frequency, enet, effective_number or log',
    )


def _add_running(parser: argparse.ArgumentParser) -> None:
    """Where files are read, and where that is kept."""
    add = parser.add_argument
    add(
        '--store',
        type=Path,
        metavar='FILE',
        help='keeps what was read of each file, so that only what changed is '
        'read again (default: work_dirs/label_check.sqlite)',
    )
    add(
        '--workers',
        type=int,
        metavar='N',
        help='processes that read files; 0 for one each CPU (default), 1 for '
        'this process',
    )
    add(
        '--scheduler',
        metavar='ADDRESS',
        help='read files on a Dask cluster that is running, in place of '
        '--workers, such as tcp://10.0.0.1:8786',
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool.

    Args:
        argv: The arguments, by default those of the command line.

    Returns:
        The exit code.
    """
    parser = make_parser()
    options = vars(parser.parse_args(argv))
    from mmext.checks.findings import terminal
    from mmext.checks.labels import check_labels
    from mmext.checks.labels.rules import RULES

    if options.pop('list_rules', False):
        terminal.print_rules(RULES.values(), terminal.make_console())
        return 0
    check = partial(check_labels, **options)
    return report_errors(parser, check).exit_code


if __name__ == '__main__':
    run_tool(main)
