"""Convert the weights of a masked autoencoder for other models.

Reads checkpoints of mmext, mmpretrain, facebookresearch/mae, timm and lightly,
and writes what mmext, mmpretrain, mmseg, timm or mmdet's ViTDet project load.
"""

import argparse
from collections.abc import Sequence

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.utils.cli import ToolParser, convert_file, run_tool
from mmext.utils.printing import say

# As mmext.models.mae.LAYOUTS has them, which loads torch.
LAYOUTS = ('mmext', 'mmpretrain', 'original', 'timm', 'mmseg', 'vitdet')


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = ToolParser(description=__doc__)
    parser.add_argument('source', help='checkpoint to read')
    parser.add_argument('target', help='file to write')
    parser.add_argument(
        '--layout',
        choices=LAYOUTS,
        default='mmext',
        help='whose names to write (default: mmext)',
    )
    parser.add_argument(
        '--image-size',
        type=int,
        nargs='+',
        metavar='PIXELS',
        help='side, or height and width, that the position embeddings are '
        'interpolated to',
    )
    parser.add_argument(
        '--decoder', action='store_true', help='keep the decoder, too'
    )
    parser.add_argument(
        '--overwrite', action='store_true', help='replace the target'
    )
    parser.add_argument(
        '--trust-checkpoint',
        '--trust',
        action='store_true',
        help='let the file run code when it is read; only for one from '
        'people you trust',
    )
    return parser


def convert(args: argparse.Namespace) -> None:
    """Write the file, and say what is in it."""
    # Not at the top: --help needs no torch.
    from mmext.models.mae import convert_mae_file

    size = args.image_size
    result = convert_mae_file(
        args.source,
        args.target,
        args.layout,
        image_size=size[0] if size and len(size) == 1 else size,
        decoder=args.decoder,
        trust=args.trust_checkpoint,
        overwrite=args.overwrite,
    )
    say(f'Written to {args.target}: {len(result.state_dict)} tensors')
    for what, names in (
        ('Left out', result.left_out),
        ('Stay as the model initialises them', result.initial),
    ):
        if names:
            say(f'{what}: {", ".join(names)}')


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit code, 2 for an unwritable target."""
    parser = make_parser()
    return convert_file(parser, parser.parse_args(argv), convert)


if __name__ == '__main__':
    run_tool(main)
