"""Write a model into a folder that others load without pickle.

The folder holds the weights as safetensors, the config and the class names as
JSON, and a model card. mmext.from_pretrained and the other tools take it in
place of a checkpoint, with no config; to publish it on the Hugging Face hub:
hf upload OWNER/NAME FOLDER.
"""

import argparse
from collections.abc import Sequence
from functools import partial

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.utils.cli import (
    ConfigOptions,
    ToolParser,
    add_trust_argument,
    report_errors,
    run_tool,
)
from mmext.utils.files import check_outputs


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = ToolParser(description=__doc__)
    add = parser.add_argument
    add('checkpoint', help='checkpoint of a training, *.pth')
    add('folder', help='folder to make')
    add('--config', help='config file (default: the one in the checkpoint)')
    add(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='settings to put over the config',
    )
    add_trust_argument(parser)
    return parser


def share(args: argparse.Namespace) -> None:
    """Check the folder, and write it."""
    check_outputs({}, new_folders={'folder': args.folder})
    # Not at the top: --help needs no torch.
    from mmext.apis import save_pretrained

    save_pretrained(
        args.checkpoint,
        args.folder,
        config=args.config,
        cfg_options=args.cfg_options,
        trust_checkpoint=args.trust_checkpoint,
    )
    print(f'{args.folder}: model.safetensors, config.json, README.md')


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns 0, wrong input exits with 2."""
    parser = make_parser()
    report_errors(parser, partial(share, parser.parse_args(argv)))
    return 0


if __name__ == '__main__':
    run_tool(main)
