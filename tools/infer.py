"""Predict what is in images and videos: draw it, and write it down as JSON.

Works with any mmdet detector and any mmseg segmentor, whose label maps are
written, too; of a multi-task model, all tasks are drawn side by side, and a
masked autoencoder reconstructs the images. The config may be left out when the
checkpoint holds it, as those that a training wrote do. Small pictures are
enlarged by a whole factor before they are drawn on; videos keep their size and
frame rate. Input files are never changed.
"""

import argparse
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.utils.cli import (
    ConfigOptions,
    ToolParser,
    add_trust_argument,
    add_view_arguments,
    report_errors,
    run_tool,
)
from mmext.utils.files import check_outputs, prepare_outputs
from mmext.utils.printing import say

if TYPE_CHECKING:
    from mmext.apis import InferReport


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    """How the model is run."""
    add = parser.add_argument
    add(
        '--score-thr',
        type=float,
        default=0.3,
        metavar='P',
        help='leave out objects of a lower score (default: %(default)s)',
    )
    add(
        '--device',
        default='auto',
        help='auto (first GPU, else CPU), cpu, cuda or cuda:N '
        '(default: %(default)s)',
    )
    add(
        '--batch-size',
        type=int,
        default=1,
        metavar='N',
        help='images at once (default: %(default)s)',
    )
    add(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='settings to put over the config, such as data_root=FOLDER',
    )
    add_view_arguments(parser)
    add_trust_argument(parser)


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = ToolParser(description=__doc__)
    add = parser.add_argument
    add(
        'images',
        nargs='*',
        metavar='IMAGE',
        help='image and video files, directories of them, or quoted patterns',
    )
    add('--config', help='config file (default: the one in the checkpoint)')
    add('--checkpoint', required=True, help='weights, *.pth')
    add('--out', required=True, metavar='DIR', help='folder for what is drawn')
    add(
        '--json',
        metavar='FILE',
        help='file for the predictions, - for standard output (default: '
        'DIR/predictions.json)',
    )
    add(
        '--from-val',
        type=int,
        metavar='N',
        help='take N images, spread over the validation set of the config, '
        'and put all on one DIR/contact_sheet.png, too',
    )
    add(
        '--with-gt',
        action='store_true',
        help='with --from-val: draw the ground truth next to the predictions',
    )
    _add_run_options(parser)
    return parser


def prepare(args: argparse.Namespace) -> tuple:
    """Find the images, load the model, and read the ground truth."""
    # Not at the top, here and below: --help needs no torch.
    from mmext.apis import (
        add_views,
        list_images,
        load_detector,
        read_ground_truth,
        read_task_samples,
    )
    from mmext.engine import keep_freed_memory, resolve_device
    from mmext.models import MultiTaskModel

    images, truths = [], []
    if args.from_val is None:
        images = list_images(args.images)
    model = load_detector(
        args.config,
        args.checkpoint,
        device=args.device,
        cfg_options=args.cfg_options,
        trust_checkpoint=args.trust_checkpoint,
    )
    if resolve_device(args.device).type == 'cpu':
        keep_freed_memory()
    model = add_views(model, tta=args.tta, tile=args.tile)
    if args.from_val is not None and isinstance(model, MultiTaskModel):
        images = read_task_samples(
            model.cfg, args.from_val, with_gt=args.with_gt
        )
    elif args.from_val is not None:
        truths = read_ground_truth(model.cfg, args.from_val)
        images = [truth.path for truth in truths]
    return model, images, truths if args.with_gt else []


def print_report(report: 'InferReport') -> None:
    """Say what there is now, and what went wrong."""
    result = ''
    if report.num_objects is not None:
        result = f'{report.num_objects} objects in '
    videos = f' and {len(report.videos)} videos' if report.videos else ''
    say(
        f'{result}{len(report.pictures)} images{videos}; '
        f'predictions in {report.json_path}'
    )
    if report.pictures:
        say(f'pictures: {report.pictures[0]} ...')
    if report.videos:
        say(f'videos: {report.videos[0]} ...')
    if report.sheet:
        say(f'all pictures on one sheet: {report.sheet}')
    for _, reason in report.failed:
        say(f'error: {reason}', error=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; 1 if an image is unreadable, 2 for wrong input."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if bool(args.images) == (args.from_val is not None):
        parser.error('name either images or --from-val N')
    if args.tile is not None and args.batch_size != 1:
        parser.error('--tile needs --batch-size 1')
    if args.with_gt and args.from_val is None:
        parser.error('--with-gt needs --from-val N')
    files = {'--json': args.json or os.path.join(args.out, 'predictions.json')}
    outputs = partial(
        check_outputs,
        files,
        folders={'--out': args.out},
        inputs={'--checkpoint': args.checkpoint, '--config': args.config},
    )
    report_errors(parser, outputs)
    with prepare_outputs(files):
        return infer(parser, args)


def infer(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Run the model, and say what was found; returns the exit code."""
    from mmext.apis import infer_to_folder
    from mmext.utils.safe_load import careful_readers

    try:
        with careful_readers(args.trust_checkpoint):
            model, images, truths = report_errors(parser, prepare, args)
        report = infer_to_folder(
            model,
            images,
            args.out,
            json_path=args.json,
            score_thr=args.score_thr,
            batch_size=args.batch_size,
            truths=truths,
            sheet=args.from_val is not None,
        )
    except (ValueError, OSError) as error:
        parser.exit(2, f'{parser.prog}: error: {error}\n')
    except KeyboardInterrupt:
        say('stopped; the pictures drawn so far stay', error=True)
        return 130
    print_report(report)
    return 1 if report.failed else 0


if __name__ == '__main__':
    run_tool(main)
