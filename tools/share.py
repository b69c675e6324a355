"""Write a model into a folder that others load without pickle.

The folder holds the weights as safetensors, the config and the class names as
JSON, and a model card with the metrics of a test, whose report goes beside it
as FOLDER_report. mmext.from_pretrained and the other tools take the folder in
place of a checkpoint, with no config; to publish it on the Hugging Face hub:
hf upload OWNER/NAME FOLDER.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from shlex import join

from mmengine.config import Config

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.utils.cli import (
    ConfigOptions,
    ToolParser,
    add_trust_argument,
    hide_gpus,
    report_errors,
    run_tool,
    tool_command,
)
from mmext.utils.files import check_outputs
from mmext.utils.printing import say


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
    add(
        '--no-test',
        action='store_true',
        help='write the folder alone, without data',
    )
    add(
        '--device',
        default='auto',
        help='where the model is tested: auto (GPU where there is one, else '
        'CPU), cpu, cuda or cuda:N (default: %(default)s)',
    )
    add_trust_argument(parser)
    return parser


def share(args: argparse.Namespace, report: Path) -> Config | None:
    """Check the folder, and write it; the config of its test."""
    check_outputs({}, new_folders={'folder': args.folder})
    # Not at the top: --help needs no torch.
    from mmext.apis import prepare_test
    from mmext.apis.pretrained import share_model
    from mmext.checks.config import read_config
    from mmext.engine import read_checkpoint

    trust, test = args.trust_checkpoint, None
    loaded = read_checkpoint(args.checkpoint, mmap=True, trust=trust)
    cfg = read_config(
        args.config,
        meta=loaded.get('meta') or {},
        cfg_options=args.cfg_options,
        trust_checkpoint=trust,
    )
    if not args.no_test:
        # What is wrong with the data is said before anything is written.
        try:
            test = prepare_test(
                cfg, args.checkpoint, report=str(report), device=args.device
            )
        except (OSError, ValueError) as error:
            raise ValueError(
                f'{error}; --no-test writes the folder without a test'
            ) from error
        test.load_from = args.folder
    share_model(cfg, loaded, args.checkpoint, args.folder, trust)
    say(f'{args.folder}: model.safetensors, config.json, README.md')
    return test


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns 0, wrong input exits with 2."""
    parser = make_parser()
    args = parser.parse_args(argv)
    hide_gpus(args.device)
    args.folder = args.folder.rstrip('/')
    report = Path(f'{args.folder}_report')
    test = report_errors(parser, share, args, report)
    if test is not None:
        from mmext.apis import run_test
        from mmext.apis.pretrained import add_figures

        add_figures(args.folder, run_test(test, report=str(report)))
        say(f'{report}: report.html, report.json')
    words = ['--checkpoint', args.folder, '--out', f'{args.folder}_pictures']
    say(f'\nNext: {tool_command("infer")} PICTURES {join(words)}')
    return 0


if __name__ == '__main__':
    run_tool(main)
