"""Generate a data set of textured shapes for detection and segmentation.

Writes COCO boxes and instance masks, and semantic masks, for a train and a
val split. The same settings give the same bytes; nothing is left behind when
it is stopped before the end.
"""

import argparse
from collections.abc import Callable, Sequence

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.datasets import SHAPE_CLASSES, ShapesSpec, write_shapes_dataset
from mmext.utils.cli import ToolParser, generate_dataset, run_tool
from mmext.utils.printing import say


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = ToolParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add('--out', default='data/shapes', metavar='DIR', help='folder to make')
    add('--num-train', type=int, default=2000, metavar='N', help='pictures')
    add('--num-val', type=int, default=200, metavar='N', help='pictures')
    add(
        '--image-size',
        type=int,
        nargs='+',
        default=[128],
        metavar='PIXELS',
        help='width and height, or one number for a square',
    )
    add('--min-objects', type=int, default=1, metavar='N', help='per picture')
    add('--max-objects', type=int, default=6, metavar='N', help='per picture')
    add(
        '--empty-fraction',
        type=float,
        default=0.05,
        metavar='P',
        help='chance that a picture has no objects',
    )
    add(
        '--hue-by-class',
        type=float,
        default=0.0,
        metavar='P',
        help='chance that the colour of a shape tells its class',
    )
    add(
        '--classes',
        nargs='+',
        choices=SHAPE_CLASSES,
        default=list(SHAPE_CLASSES),
        metavar='NAME',
        help='what is drawn; labels keep their numbers',
    )
    add('--seed', type=int, default=0, help='of the whole set')
    add(
        '--overwrite',
        action='store_true',
        help='replace a set that this tool made earlier',
    )
    return parser


def make_spec(args: argparse.Namespace) -> ShapesSpec:
    """The settings of the pictures."""
    size = args.image_size
    if len(size) > 2:
        raise ValueError(f'image_size must be W H or one number, got {size}')
    return ShapesSpec(
        image_size=(size[0], size[-1]),
        min_objects=args.min_objects,
        max_objects=args.max_objects,
        empty_fraction=args.empty_fraction,
        hue_by_class=args.hue_by_class,
        classes=tuple(args.classes),
        seed=args.seed,
    )


def describe(counts: dict) -> str:
    """What is in a split."""
    classes = ', '.join(f'{counts[name]} {name}' for name in SHAPE_CLASSES)
    return (
        f'{counts["images"]} pictures, {counts["objects"]} objects ({classes})'
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit code, 2 if --out cannot be made."""
    parser = make_parser()
    args = parser.parse_args(argv)

    def write(on_image: Callable[[], None]) -> dict:
        return write_shapes_dataset(
            args.out,
            make_spec(args),
            num_train=args.num_train,
            num_val=args.num_val,
            overwrite=args.overwrite,
            on_image=on_image,
        )

    code = generate_dataset(parser, args, write, describe)
    if not code:
        say(f'Written to {args.out}; in a config: data_root = {args.out!r}')
    return code


if __name__ == '__main__':
    run_tool(main)
