"""Write a model as an ONNX file, or as a program of PyTorch, and check it.

CO-DINO, and the segmentors of mmseg such as PIDNet. The file takes any number
of pictures of any size (red green blue, 0 to 255) and needs neither mmext nor
PyTorch; docs/export.md shows how to run it. Before it appears under its name,
it is compared with the model at three sizes, one and three pictures at once.
"""

import argparse
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
from mmext.utils.printing import say

if TYPE_CHECKING:
    from mmext.apis import ExportReport


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
    return export_model(model, path, kind='onnx' if args.onnx else 'pt2')


def print_report(report: 'ExportReport') -> None:
    """Say what there is now, and how exact it is."""
    worst = ', '.join(
        f'{name} differ by {value:.1e}{" px" * (name == "boxes")} at most'
        for name, value in report.worst().items()
    )
    say(f'{report.path}: {", ".join(report.outputs)}')
    say(f'checked at {len(report.checks)} shapes: {worst}')
    for what in report.left_out:
        say(
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
        say(f'{parser.prog}: error: {error}', error=True)
        return 1
    except KeyboardInterrupt:
        say('stopped; no file was written', error=True)
        return 130
    print_report(report)
    return 0


if __name__ == '__main__':
    run_tool(main)
