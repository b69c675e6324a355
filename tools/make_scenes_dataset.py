"""Generate rooms with class, depth and surface normal of each pixel.

For multi-task learning, in the layout of the public pre-processed NYUv2:
{train,val}/{image,label,depth,normal}/{i}.npy. The same settings give the
same bytes; nothing is left behind when it is stopped before the end.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.utils.cli import ToolParser, generate_dataset, run_tool
from mmext.utils.printing import say

if TYPE_CHECKING:
    from mmext.datasets import ScenesSpec


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = ToolParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add('--out', default='data/scenes', metavar='DIR', help='folder to make')
    add('--num-train', type=int, default=600, metavar='N', help='scenes')
    add('--num-val', type=int, default=120, metavar='N', help='scenes')
    add(
        '--image-size',
        type=int,
        nargs=2,
        default=[128, 96],
        metavar=('W', 'H'),
        help='width and height in pixels',
    )
    add('--max-objects', type=int, default=4, metavar='N', help='per scene')
    add(
        '--noise',
        type=float,
        default=0.02,
        metavar='STD',
        help='of pictures with values in [0, 1]',
    )
    add(
        '--invalid-fraction',
        type=float,
        default=0.04,
        metavar='P',
        help='about which share of the pixels has no label, and no depth',
    )
    add('--seed', type=int, default=0, help='of the whole set')
    add(
        '--overwrite',
        action='store_true',
        help='replace a set that this tool made earlier',
    )
    return parser


def make_spec(args: argparse.Namespace) -> 'ScenesSpec':
    """Settings of the scenes."""
    # Not at the top, here and below: --help needs no OpenCV.
    from mmext.datasets import ScenesSpec

    return ScenesSpec(
        image_size=tuple(args.image_size),
        max_objects=args.max_objects,
        noise=args.noise,
        invalid_fraction=args.invalid_fraction,
        seed=args.seed,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit code, 2 if --out cannot be made."""
    parser = make_parser()
    args = parser.parse_args(argv)
    from mmext.datasets import SCENE_CLASSES, write_scenes_dataset

    def write(on_image: Callable[[], None]) -> dict:
        return write_scenes_dataset(
            args.out,
            make_spec(args),
            num_train=args.num_train,
            num_val=args.num_val,
            overwrite=args.overwrite,
            on_image=on_image,
        )

    code = generate_dataset(parser, args, write, '{} scenes'.format)
    if not code:
        say(f'Classes: {", ".join(SCENE_CLASSES)}')
        say(f'Written to {args.out}; in a config: data_root = {args.out!r}')
    return code


if __name__ == '__main__':
    run_tool(main)
