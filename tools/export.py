"""Write a model as an ONNX file, or as a program of PyTorch, and check it.

CO-DINO, and the segmentors of mmseg such as PIDNet. The file takes any number
of pictures of any size (red green blue, 0 to 255) and needs neither mmext nor
PyTorch; docs/export.md shows how to run it. Before it appears under its name,
it is compared with the model at three sizes, one and three pictures at once.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.utils.cli import (
    ConfigOptions,
    ToolParser,
    add_trust_argument,
    report_errors,
    run_tool,
)
from mmext.utils.files import check_outputs

if TYPE_CHECKING:
    from mmext.apis import ExportReport


def size(text: str) -> tuple[int, int]:
    """Height and width as in 480x640, for argparse."""
    height, _, width = text.partition('x')
    if not (height.isdecimal() and width.isdecimal()):
        raise argparse.ArgumentTypeError(
            f'must be a height and a width such as 480x640, got {text}'
        )
    return int(height), int(width)


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = ToolParser(description=__doc__)
    add = parser.add_argument
    add('checkpoint', help='weights, *.pth')
    add('--config', help='config file (default: the one in the checkpoint)')
    kinds = parser.add_mutually_exclusive_group(required=True)
    kinds.add_argument(
        '--onnx',
        metavar='FILE',
        help='write ONNX, standard operators only; needs pip install '
        '"mmext[onnx]"',
    )
    kinds.add_argument(
        '--pt2', metavar='FILE', help='write a program for torch.export.load'
    )
    add(
        '--all-scores',
        action='store_true',
        help='give the scores of all classes, for all queries or pixels, and '
        'leave the selection of the result to who runs the file',
    )
    add(
        '--check-sizes',
        type=size,
        nargs='+',
        metavar='HxW',
        help='sizes to compare at, in pixels (default: 160x192 224x160 '
        '256x320)',
    )
    add(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='settings to put over the config',
    )
    add_trust_argument(parser)
    return parser


def export(args: argparse.Namespace) -> 'ExportReport':
    """Load the model, write the file and check it."""
    # Not at the top: --help needs no torch.
    from mmext.apis import export_model, load_detector

    path = args.onnx or args.pt2
    check_outputs(
        {},
        regular={'--onnx': args.onnx, '--pt2': args.pt2},
        inputs={'checkpoint': args.checkpoint, '--config': args.config},
    )
    model = load_detector(
        args.config,
        args.checkpoint,
        device='cpu',
        cfg_options=args.cfg_options,
        trust_checkpoint=args.trust_checkpoint,
    )
    options = {'sizes': args.check_sizes} if args.check_sizes else {}
    return export_model(
        model,
        path,
        kind='onnx' if args.onnx else 'pt2',
        select=not args.all_scores,
        **options,
    )


def print_report(report: 'ExportReport') -> None:
    """Say what there is now, and how exact it is."""
    worst = ', '.join(
        f'{name} differ by {value:.1e}{" px" * (name == "boxes")} at most'
        for name, value in report.worst().items()
    )
    print(f'{report.path}: {", ".join(report.outputs)}')
    print(f'checked at {len(report.checks)} shapes: {worst}')
    for what in report.left_out:
        print(
            'left out, apply it as mmext.apis.run_onnx does if you want it: '
            f'{what}'
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; 1 if the file would be wrong, 2 for wrong input."""
    parser = make_parser()
    args = parser.parse_args(argv)
    from mmext.apis import ExportError

    try:
        report = report_errors(parser, export, args)
    except ExportError as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('stopped; no file was written', file=sys.stderr)
        return 130
    print_report(report)
    return 0


if __name__ == '__main__':
    run_tool(main)
