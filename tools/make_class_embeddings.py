"""Write class embeddings, made from class names by a text encoder.

A head that classifies by the cosine to them, such as
mmext.CoDINOClassEmbedHead, reads the file. Each name is put into each
template, with blanks for underscores; the directions of its texts are
averaged. The model is CLIP-style (CLIP, SigLIP) and run by an extra:
pip install 'mmext[transformers]'. Checkpoints in open_clip's own format have
to be converted first.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

import mmext.utils.quiet_hosts  # (first: it is quiet then)
from mmext.utils.cli import ToolParser, report_errors, run_tool
from mmext.utils.files import check_outputs
from mmext.utils.printing import printable, say

if TYPE_CHECKING:
    from torch import Tensor


def _add_texts(parser: argparse.ArgumentParser) -> None:
    """Where names and templates come from."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        '--classes', nargs='+', metavar='NAME', help='names, in label order'
    )
    source.add_argument(
        '--classes-file', metavar='FILE', help='names, one a line'
    )
    source.add_argument('--config', help='take the names of its training data')
    parser.add_argument(
        '--templates',
        nargs='+',
        metavar='TEXT',
        help='texts with {} for the name (default: captions)',
    )


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = ToolParser(description=__doc__)
    _add_texts(parser)
    add = parser.add_argument
    add(
        '--model',
        required=True,
        help='folder of a model, or a name on the Hugging Face hub',
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
        default=64,
        metavar='N',
        help='texts at once (default: %(default)s)',
    )
    add(
        '--offline',
        action='store_true',
        help='use what has been downloaded, and nothing else',
    )
    add(
        '--out',
        required=True,
        metavar='FILE',
        help='file to write, *.safetensors',
    )
    add('--force', action='store_true', help='replace an existing file')
    return parser


def read_texts(args: argparse.Namespace) -> tuple:
    """Class names, and templates or None for those of the encoder."""
    # Not at the top, here and below: --help needs no torch.
    from mmext.apis.class_embeddings import (
        check_templates,
        class_phrases,
        read_lines,
    )
    from mmext.checks.config import read_config, read_config_classes

    if args.config is not None:
        classes = read_config_classes(read_config(args.config))
    else:
        classes = args.classes or read_lines(args.classes_file)
    class_phrases(classes)
    templates = args.templates and check_templates(args.templates)
    return classes, templates


def make(args: argparse.Namespace) -> tuple:
    """Make the embeddings and write them.

    What can be wrong with the command line is found before the model is
    loaded.
    """
    from rich.progress import Progress

    from mmext.apis.class_embeddings import (
        TextEncoder,
        check_embeddings_path,
        make_class_embeddings,
        save_class_embeddings,
    )

    check_embeddings_path(args.out, force=args.force)
    check_outputs(
        {'--out': args.out},
        inputs={
            '--config': args.config,
            '--classes-file': args.classes_file,
        },
    )
    classes, templates = read_texts(args)
    encoder = TextEncoder(args.model, device=args.device, offline=args.offline)
    templates = templates or encoder.default_templates
    console = Console(stderr=True)
    quiet = not console.is_terminal
    with Progress(console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task(
            'Embedding texts', total=len(classes) * len(templates)
        )
        embeddings = make_class_embeddings(
            classes,
            encoder,
            templates,
            batch_size=args.batch_size,
            on_texts=lambda count: bar.advance(task, count),
        )
    info = {
        'encoder': encoder.name,
        'templates': list(templates),
        'mmext_version': mmext.__version__,
    }
    save_class_embeddings(
        args.out, embeddings, classes, info, force=args.force
    )
    return classes, embeddings, info


def print_report(
    classes: Sequence[str], embeddings: 'Tensor', info: dict, out: str
) -> None:
    """Show what was made, and warn of classes that are nearly the same."""
    from rich.table import Table

    from mmext.apis.class_embeddings import SIMILAR_COSINE, closest_classes

    # No markup: names may hold brackets.
    table = Table(show_header=False)
    table.add_column()
    table.add_column(overflow='fold')
    closest = closest_classes(embeddings)
    rows = {
        'classes': str(len(classes)),
        'dimensions': str(embeddings.shape[1]),
        'encoder': info['encoder'],
        'templates': '\n'.join(info['templates']),
        'most similar': 'none: there is one class'
        if closest is None
        else f'{classes[closest[0]]} and {classes[closest[1]]}, '
        f'cosine {closest[2]:.4f}',
        'file': out,
    }
    for key, value in rows.items():
        table.add_row(key, printable(value))
    console = Console(markup=False, highlight=False, emoji=False)
    console.print(table)
    if closest is not None and closest[2] > SIMILAR_COSINE:
        say(
            f'warning: {classes[closest[0]]!r} and {classes[closest[1]]!r} '
            f'have a cosine of {closest[2]:.4f}, above {SIMILAR_COSINE}; a '
            'classifier can hardly tell them apart: use other names, other '
            'templates or another model',
            error=True,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns 0, or 130 when interrupted."""
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        classes, embeddings, info = report_errors(parser, make, args)
    except KeyboardInterrupt:
        say(f'stopped; {args.out} is as it was', error=True)
        return 130
    print_report(classes, embeddings, info, args.out)
    return 0


if __name__ == '__main__':
    run_tool(main)
